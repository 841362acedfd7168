// SPDX-License-Identifier: Apache-2.0
// Prefill's launch. The kernels themselves are compiled in files of their own, which the build writes: each
// takes long.
#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>

#include "cuda/prefill/gather.cuh"
#include "cuda/prefill/launch.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {

std::int64_t prefill_bytes(const Call& c, const Extents& extents) {
  std::int64_t states = 0;
  for (std::int64_t b = 0; b < c.batch; ++b)
    if (const std::int64_t units = prefill_units(c, c.sequence(b)); units > 1)
      states += c.sequence(b).queries * c.heads * units;
  return CacheBytes(c, extents).all() + states * partial_floats(c.value_dim) * 4 + extents.mask.bytes();
}

namespace {

using enum PrefillKind;
constexpr PrefillKind kinds[] = {plain,  cut,      capped, masked, masked_capped, sloped,
                                 biased, dropping, scaled, paged,  cut_scaled,    cut_paged};

// What a launch of one kernel takes beside its shape.
struct PrefillLaunch {
  const Call& c;
  const Extents& extents;
  const PrefillPlan& plan;
  Stream stream;

  // The n-th of all widths and kinds, or one after it.
  template <std::size_t n = 0>
  void run(const PrefillDims& dims) const {
    constexpr PrefillDims it = prefill_dims[n / std::size(kinds)];
    constexpr PrefillKind kind = kinds[n % std::size(kinds)];
    if constexpr (has_kernel(it, kind))
      if (dims.dim == it.dim && dims.value_dim == it.value_dim && prefill_kind(c) == kind)
        return c.q.type == Type::bf16
                   ? launch_prefill_kind<it.dim, it.value_dim, Type::bf16, kind>(c, extents, plan, stream)
                   : launch_prefill_kind<it.dim, it.value_dim, Type::f16, kind>(c, extents, plan, stream);
    if constexpr (n + 1 < std::size(prefill_dims) * std::size(kinds)) run<n + 1>(dims);
  }
};

}  // namespace

void launch_prefill(const Call& call, const Extents& extents, const PrefillTiles& tiles,
                    const Workspace& workspace, Stream stream) {
  if (tiles.count * call.heads == 0) return;
  Call c = call;
  GatheredRows rows{};
  if (call.cached && !reads_pages(call)) {
    rows = gathered(call, extents, workspace.rest(), stream);
    c.k = rows.k, c.v = rows.v;
  }
  std::byte* const memory = workspace.rest() + CacheBytes(call, extents).all();
  PrefillPlan plan = prefill_plan(c, extents, tiles);
  plan.next_tile = workspace.counters();
  plan.mask = packed(c, extents.mask, memory, stream);
  plan.partials.states = reinterpret_cast<float*>(memory);
  plan.key_scales = rows.key_scales, plan.value_scales = rows.value_scales, plan.scale_rows = rows.scale_rows;
  PrefillLaunch{c, extents, plan, stream}.run(prefill_dims_for(c));
  if (plan.partials.units > 0 && (plan.partials.starts || !tiles.starts))
    launch_partial_merge(c, plan.partials, nullptr, stream);
}

}  // namespace heed::cuda
