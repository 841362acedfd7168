// SPDX-License-Identifier: Apache-2.0
// Which calls the kernels of the matrix units take, and prefill's launch. The kernels themselves are compiled
// in files of their own, which the build writes: each takes long.
#include <cmath>
#include <initializer_list>
#include <iterator>

#include "cuda/prefill/launch.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {

const char* matrix_units_refuse(const Call& c) {
  if (c.q.type != Type::bf16 && c.q.type != Type::f16) return "it takes bf16 and f16";
  if (c.k.type != c.q.type || c.v.type != c.q.type) return "it takes q, k and v of one type";
  if (c.bias.data) return "it takes no bias";
  if (c.alibi.of_heads) return "it takes no slopes of ALiBi";
  if (c.mask_count > 0 || c.document_count > 0) return "it takes no masks but ranges of keys";
  if (c.front > 0 || c.gap_count > 0) return "it takes no front of a window";
  if (c.drop_below > 0) return "it takes no dropout";
  if (c.weights.data) return "weights were asked for";
  if (c.scores.data) return "scores were asked for";
  if (!std::isfinite(c.scale_log2e)) return "options.scale times log2(e) is beyond the range of f32";
  if (!std::isfinite(c.softcap_log2e)) return "options.softcap times log2(e) is beyond the range of f32";
  if (c.keys >= std::int64_t{1} << 30 || c.queries >= std::int64_t{1} << 30)
    return "there are 2^30 rows or more";
  return nullptr;
}

const char* prefill_refuses(const Call& c) {
  if (const char* reason = matrix_units_refuse(c)) return reason;
  const auto is_width = [](std::int64_t dim) { return dim >= 8 && dim <= 256 && dim % 8 == 0; };
  if (!is_width(c.dim) || !is_width(c.value_dim)) return "it takes heads of 8 to 256 in steps of 8";
  if (c.cached && c.cap != 0) return "it takes no softcap over a cache";  // registers do not suffice (C7511)
  if (c.out.type != c.q.type) return "it writes the type of q";
  if (!(c.scale_log2e > 0)) return "it takes a positive scale";
  if (c.keys == 0) return "there are no keys";
  for (const Tensor* t : {&c.q, &c.k, &c.v, &c.out})
    if (!is_mappable(*t) && !(c.cached && (t == &c.k || t == &c.v)))
      return "the copy engine wants rows without gaps, and everything on 16 bytes";
  return nullptr;
}

std::int64_t prefill_rows(const Call& c) {
  return 64 * prefill_groups(prefill_dims_for(c).dim, c.cached != nullptr);
}

namespace {

// The kernels of the n-th of prefill_dims, or of one after it.
template <std::size_t n = 0>
void launch_for(const PrefillDims& dims, const Call& c, const Extents& extents, const PrefillPlan& plan,
                Stream stream) {
  constexpr PrefillDims it = prefill_dims[n];
  if (dims.dim == it.dim && dims.value_dim == it.value_dim)
    c.q.type == Type::bf16 ? launch_prefill_dims<it.dim, it.value_dim, Type::bf16>(c, extents, plan, stream)
                           : launch_prefill_dims<it.dim, it.value_dim, Type::f16>(c, extents, plan, stream);
  else if constexpr (n + 1 < std::size(prefill_dims))
    launch_for<n + 1>(dims, c, extents, plan, stream);
}

}  // namespace

void launch_prefill(const Call& c, const Extents& extents, const PrefillTiles& tiles,
                    const Workspace& workspace, Stream stream) {
  if (tiles.count * c.heads == 0) return;
  PrefillPlan plan{};
  plan.next_tile = workspace.counters();
  plan.tile_starts = tiles.starts;
  plan.tiles = static_cast<int>(tiles.count * c.heads);
  if (!tiles.starts) plan.order = prefill_order(c, prefill_rows(c));
  plan.key_rows = static_cast<int>(extents.key_rows);
  launch_for(prefill_dims_for(c), c, extents, plan, stream);
}

}  // namespace heed::cuda
