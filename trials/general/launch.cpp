// SPDX-License-Identifier: Apache-2.0
#include "general/launch.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

namespace heed::cuda::general {
namespace {

std::int64_t parts(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }

bool lies_in_16(const Tensor& t) {
  constexpr std::int64_t far = std::int64_t{1} << 24;  // strides within a tile of keys are 32 bits
  return t.stride.dim == 1 && t.stride.length < far && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 &&
         t.stride.batch % 8 == 0 && t.stride.heads % 8 == 0 && t.stride.length % 8 == 0;
}

constexpr std::int64_t section_bytes = 12'000'000;  // of keys and values, that stay in the second-level cache

}  // namespace

std::vector<Kernel>& kernels() {
  static std::vector<Kernel> list;
  return list;
}

int features_of(const Call& c) {
  enum { masking = 1, changing = 2, biasing = 4, dropping = 8 };
  int features = 0;
  if (c.mask_count > 0 || c.document_count > 0 || c.gap_count > 0 || c.front > 0) features |= masking;
  if (c.alibi.of_heads || c.softcap_log2e != 0 || !(c.scale_log2e > 0)) features |= changing;
  if (c.bias.data) features |= biasing;
  if (c.drop_below > 0) features |= dropping;
  return features == 0 ? -1 : features;
}

const Kernel* kernel_for(const Call& c, std::string_view forced) {
  const SourceKind source = !c.cached               ? SourceKind::arrays
                            : c.layout.is_quantized ? SourceKind::int8_pages
                                                    : SourceKind::pages;
  const std::int64_t rows = c.queries * c.group();
  const Kernel* best = nullptr;
  const auto cost = [&](const Kernel& k) {
    const int waste = (k.dim + k.value_dim) * 32 + k.features;
    return std::pair(k.is_few && rows <= k.rows ? k.rows : 1 << 20, waste);
  };
  for (const Kernel& k : kernels()) {
    if (k.type != c.q.type || k.source != source || k.dim < c.dim || k.value_dim < c.value_dim) continue;
    const int features = features_of(c);
    if (features >= 0 && (k.features < 0 || (features & ~k.features) != 0)) continue;
    if (k.is_few && rows > k.rows) continue;
    if ((c.weights.data || c.scores.data) && !k.inspect) continue;
    const bool is_variant = k.name[0] == '?';
    if (!forced.empty() ? forced != k.name : is_variant) continue;
    if (!best || cost(k) < cost(*best)) best = &k;
  }
  return best;
}

Launch plan_launch(const Call& c, const Kernel& k, int unit_keys, int units_each) {
  Launch l{&k, {}, 0, 1, 0, 0};
  Plan& p = l.plan;
  const std::int64_t rows = c.queries * c.group(), heads = c.batch * c.kv_heads;
  p.row_tiles = static_cast<int>(parts(rows, k.rows));
  p.heads = static_cast<int>(heads);
  const std::int64_t bytes = heads * c.keys * (c.dim + c.value_dim) * 2, sections = bytes / section_bytes + 1;
  p.section = static_cast<int>(std::max<std::int64_t>(1, parts(heads, sections)));
  p.unit_keys = unit_keys ? unit_keys : k.is_few ? 512 : 1024;
  p.cut_rows = 512;
  p.q_in_16 = lies_in_16(c.q), p.k_in_16 = !c.cached && lies_in_16(c.k),
  p.v_in_16 = !c.cached && lies_in_16(c.v);
  p.key_stride = static_cast<int>(c.k.stride.length), p.value_stride = static_cast<int>(c.v.stride.length);
  p.q_in_16 = p.q_in_16 && c.dim % 8 == 0, p.k_in_16 = p.k_in_16 && c.dim % 8 == 0,
  p.v_in_16 = p.v_in_16 && c.value_dim % 8 == 0;
  p.out_in_16 = lies_in_16(c.out) && c.out.type == k.type && c.value_dim % 8 == 0;
  const bool may_cut = c.keys > p.unit_keys && (c.sequences || rows <= p.cut_rows);
  const std::int64_t units = may_cut ? parts(c.keys, p.unit_keys) : 1;
  l.blocks = std::int64_t{p.row_tiles} * heads;
  // Where warps share the keys, a block may do several units: three blocks for every place on the device keep
  // it busy.
  constexpr std::int64_t multiprocessors = 132;
  const std::int64_t wanted = parts(3 * k.blocks * multiprocessors, std::max<std::int64_t>(l.blocks, 1));
  p.units_each = k.key_warps == 1 ? 1
                                  : static_cast<int>(units_each ? std::min<std::int64_t>(units_each, units)
                                                                : parts(units, std::min(wanted, units)));
  p.partial_units = may_cut ? static_cast<int>(units) * k.key_warps : 0;
  p.partial_rows = static_cast<int>(std::min<std::int64_t>(rows, p.cut_rows));
  l.units = may_cut ? parts(units, p.units_each) : 1;
  l.partial_floats = may_cut ? heads * p.partial_units * p.partial_rows * partial_floats(c.value_dim) : 0;
  l.kept_ends = c.weights.data ? c.batch * c.heads * c.queries : 0;
  return l;
}

int launch(const Call& c, const Launch& l, void* stream) {
  if (l.blocks == 0) return 0;
  const auto s = static_cast<cudaStream_t>(stream);
  Call call = c;
  Plan plan = l.plan;
  if (const auto code = cudaFuncSetAttribute(l.kernel->attend, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             l.kernel->shared_bytes))
    return code;
  void* args[] = {&call, &plan};
  const int slab = l.kernel->value_dim == any_dim ? slab_dims : any_dim;
  for (; plan.first_dim < std::max<std::int64_t>(c.value_dim, 1); plan.first_dim += slab)
    if (const auto code = cudaLaunchKernel(
            l.kernel->attend, dim3(static_cast<unsigned>(l.blocks), static_cast<unsigned>(l.units)),
            dim3(static_cast<unsigned>(l.kernel->threads)), args,
            static_cast<std::size_t>(l.kernel->shared_bytes), s))
      return code;
  plan.first_dim = 0;
  if (l.partial_floats > 0) {
    void* merge_args[] = {&call, &plan};
    const std::int64_t rows = std::int64_t{plan.heads} * plan.partial_rows;
    if (const auto code = cudaLaunchKernel(l.kernel->merge, dim3(static_cast<unsigned>(parts(rows, 4))),
                                           dim3(128), merge_args, 0, s))
      return code;
  }
  if (!c.weights.data && !c.scores.data) return 0;
  if (const auto code = cudaFuncSetAttribute(l.kernel->inspect, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             l.kernel->shared_bytes))
    return code;
  return cudaLaunchKernel(
      l.kernel->inspect,
      dim3(static_cast<unsigned>(l.blocks), static_cast<unsigned>(parts(c.keys, l.kernel->tile_keys))),
      dim3(static_cast<unsigned>(l.kernel->threads)), args, static_cast<std::size_t>(l.kernel->shared_bytes),
      s);
}

}  // namespace heed::cuda::general
