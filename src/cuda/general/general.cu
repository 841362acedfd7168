// SPDX-License-Identifier: Apache-2.0
// Which calls the general kernel takes, which of its shapes a call goes to on the current device, and the
// launches.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "cuda/exact/state.cuh"
#include "cuda/general/plan.hpp"
#include "cuda/runtime/launch_early.cuh"

namespace heed::cuda {
namespace general {
namespace {

std::int64_t parts(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }
std::int64_t rounded(std::int64_t bytes) { return parts(bytes, 256) * 256; }

unsigned features_of(const Call& c) {
  unsigned features = none;
  if (c.mask_count > 0 || scans_documents(c) || c.gap_count > 0 || c.front > 0) features |= masking;
  if (c.alibi.of_heads || c.softcap_log2e != 0 || !softmax_scales(c)) features |= changing;
  if (c.bias.data) features |= biasing;
  if (c.drop_below > 0) features |= dropping;
  return features;
}

Source source_of(const Call& c) {
  return !c.cached ? Source::arrays : c.layout.is_quantized ? Source::int8_pages : Source::pages;
}

template <Type type>
std::vector<Kernel> all_of_type() {
  std::vector<Kernel> all;
  const auto add = [&](std::span<const Kernel> group) { all.insert(all.end(), group.begin(), group.end()); };
  add(kernels_of<type, 0>()), add(kernels_of<type, 1>()), add(kernels_of<type, 2>());
  add(kernels_of<type, 3>()), add(kernels_of<type, 4>());
  static_assert(group_count == 5);
  return all;
}
const std::vector<Kernel>& kernels_of(Type type) {
  static const std::vector<Kernel> bf16 = all_of_type<Type::bf16>(), f16 = all_of_type<Type::f16>();
  return type == Type::bf16 ? bf16 : f16;
}
SlabKernels slab_kernels_of(Type type) {
  return type == Type::bf16 ? slab_kernels<Type::bf16>() : slab_kernels<Type::f16>();
}

// Few rows first, then shapes of which the multiprocessor has room for as many blocks as they are made for,
// then the narrowest, then that with the fewest features; the first of those that are equal.
Kernel kernel_for(const Call& c, const DeviceFacts& device) {
  const std::int64_t rows = c.queries * c.group();
  const unsigned features = features_of(c);
  const auto cost = [&](const Kernel& k) {
    const bool fits = device.fits_blocks(k.blocks, static_cast<std::size_t>(k.shared_bytes));
    return std::tuple(k.is_for_few_rows() ? k.rows : any_dim, fits ? 0 : 1, k.dim + k.value_dim, k.features);
  };
  const Kernel* best = nullptr;
  for (const Kernel& k : kernels_of(c.q.type)) {
    if (k.source != source_of(c) || k.dim < c.dim || k.value_dim < c.value_dim) continue;
    if (features != none && (k.features == none || (features & ~k.features) != 0)) continue;
    if (k.is_for_few_rows() && rows > k.rows) continue;
    if (!device.fits_block(static_cast<std::size_t>(k.shared_bytes))) continue;
    if (!best || cost(k) < cost(*best)) best = &k;
  }
  return best ? *best : slab_kernels_of(c.q.type).attend;
}

// A plan without its memory, and how much it takes.
struct Launch {
  Kernel kernel;
  Plan plan;
  std::int64_t blocks, columns;
  std::int64_t listed;  // tiles that a list of unfinished ones may have
  std::int64_t partial_bytes, end_bytes, list_bytes;

  std::int64_t bytes() const { return partial_bytes + end_bytes + list_bytes; }
};

// Keys and values of a section stay in the second-level cache (prefill/plan.hpp).
constexpr std::int64_t section_bytes = 12'000'000;

// Of a plan whose section, heads and row tiles are known.
void set_divisors(Plan& p, const Call& c) {
  const auto of = [](std::int64_t by) { return Divisor(std::max<std::int64_t>(by, 1)); };
  p.by_section = of(std::int64_t{p.section} * p.row_tiles), p.by_here = of(p.section);
  p.by_last = of(p.heads % p.section);
  p.by_kv_heads = of(c.kv_heads), p.by_group = of(c.group());
}
bool begins_at_0(const Call& c, const Kernel& k, const Plan& p) {
  return !c.sequences && !c.cached && !c.run_starts && c.queries > 0 && c.front == 0 &&
         c.each.first_offset + c.queries <= 1 && p.k_in_16 && p.v_in_16 && c.dim == k.dim &&
         c.value_dim == k.value_dim;
}

// Units of keys begin at key 0 and have a fixed length, so that no bit depends on how many a block does.
Launch plan_launch(const Call& c, Cut cut) {
  const DeviceFacts device = device_facts();
  Launch l{kernel_for(c, device), {}, 0, 1, 0, 0, 0, 0};
  const Kernel& k = l.kernel;
  Plan& p = l.plan;
  const std::int64_t rows = c.queries * c.group(), heads = c.batch * c.kv_heads;
  p.row_tiles = static_cast<int>(parts(rows, k.rows));
  p.heads = static_cast<int>(heads);
  const std::int64_t bytes = heads * c.keys * (c.dim + c.value_dim) * 2, sections = bytes / section_bytes + 1;
  p.section = static_cast<int>(std::max<std::int64_t>(1, parts(heads, sections)));
  p.group = static_cast<int>(c.group());
  set_divisors(p, c);
  Partials& partials = p.partials;
  partials.unit_keys = k.is_for_few_rows() ? 512 : 1024;
  constexpr std::int64_t max_columns = 65535;  // that a launch has room for
  const std::int64_t units = parts(c.keys, partials.unit_keys);
  partials.cut_rows = units <= max_columns ? 512 : 0;
  p.q_in_16 = lies_in_16(c.q, c.dim);
  p.k_in_16 = !c.cached && lies_in_16(c.k, c.dim), p.v_in_16 = !c.cached && lies_in_16(c.v, c.value_dim);
  p.key_stride = static_cast<int>(c.k.stride.length), p.value_stride = static_cast<int>(c.v.stride.length);
  p.out_in_16 = lies_in_16(c.out, c.value_dim) && c.out.type == k.type;
  p.begins_at_0 = begins_at_0(c, k, p);
  l.blocks = std::int64_t{p.row_tiles} * heads;
  const bool is_cut = units > 1 && partials.cut_rows > 0 && (c.sequences || rows <= partials.cut_rows);
  // Where warps share the keys, a block may do several units: three blocks for every place on the device keep
  // it busy.
  const std::int64_t at_once = planned_blocks(cut, 3 * k.blocks * device.multiprocessors),
                     wanted = std::max<std::int64_t>(1, parts(at_once, std::max<std::int64_t>(l.blocks, 1)));
  p.units_each = is_cut && k.is_for_few_rows() ? static_cast<int>(parts(units, std::min(wanted, units))) : 1;
  partials.key_warps = k.key_warps;
  partials.rows = static_cast<int>(std::min<std::int64_t>(rows, partials.cut_rows));
  if (is_cut) {
    partials.units = static_cast<int>(units) * k.key_warps;
    l.columns = parts(units, p.units_each);
    l.partial_bytes = rounded(heads * partials.units * partials.rows * partial_floats(c.value_dim) * 4);
  }
  const std::int64_t all_rows = c.batch * c.heads * c.queries;
  if (c.weights.data) l.end_bytes = rounded(all_rows * std::int64_t{sizeof(SavedEnd)});
  l.listed = l.blocks * parts(k.rows, unfinished_rows);
  l.list_bytes = rounded(l.listed * std::int64_t{sizeof(Unfinished)});
  return l;
}

void launch(const Kernel& k, const Call& c, const Plan& plan, std::int64_t blocks, std::int64_t columns,
            Stream stream) {
  const auto* function = reinterpret_cast<const void*>(k.function);
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared_bytes),
        "cudaFuncSetAttribute");
  launch_early(k.function,
               {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(columns)),
                static_cast<unsigned>(k.threads), static_cast<std::size_t>(k.shared_bytes)},
               stream, c, plan);
}

// Rows whose keys were not cut: the tiles of the list.
void finish(const Call& c, const Launch& l, const Plan& plan, Stream stream) {
  if (l.partial_bytes > 0 && !c.sequences) return;  // all were
  const SlabKernels slabs = slab_kernels_of(c.q.type);
  const Kernel& k = l.kernel.sharing > 1                             ? slabs.finish_halves
                    : l.kernel.tile_keys < slabs.finish_64.tile_keys ? slabs.finish_32
                                                                     : slabs.finish_64;
  launch(k, c, plan, std::min<std::int64_t>(2 * device_facts().multiprocessors, l.listed), 1, stream);
}

void launch_slabs(const Call& c, const Launch& l, Stream stream) {
  Plan slab = l.plan;
  for (; slab.first_dim < std::max<std::int64_t>(c.value_dim, 1); slab.first_dim += slab_dims) {
    launch(l.kernel, c, slab, l.blocks, l.columns, stream);
    finish(c, l, slab, stream);
  }
}

void inspect(const Call& c, Plan plan, Stream stream) {
  const Kernel k = slab_kernels_of(c.q.type).inspect;
  const std::int64_t tiles = parts(c.keys, k.tile_keys);
  if (tiles == 0) return;
  plan.row_tiles = static_cast<int>(parts(c.queries * c.group(), k.rows));
  set_divisors(plan, c);
  plan.units_each = static_cast<int>(parts(tiles, 32768));
  launch(k, c, plan, std::int64_t{plan.row_tiles} * plan.heads, parts(tiles, plan.units_each), stream);
}

}  // namespace
}  // namespace general

const char* general_refuses(const Call& c) {
  if (c.q.type != Type::bf16 && c.q.type != Type::f16) return "it takes bf16 and f16";
  const bool is_int8 = c.cached && c.layout.is_quantized;
  if (!is_int8 && (c.k.type != c.q.type || c.v.type != c.q.type))
    return "it takes k and v of q's type, or a cache of int8";
  if (!std::isfinite(c.scale_log2e)) return "options.scale times log2(e) is beyond the range of f32";
  if (!std::isfinite(c.softcap_log2e)) return "options.softcap times log2(e) is beyond the range of f32";
  constexpr std::int64_t many = std::int64_t{1} << 30;
  if (c.keys >= many || c.queries * c.group() >= many || c.batch * c.heads >= many)
    return "there are 2^30 keys, rows of a KV head or heads, or more";
  if (c.batch * c.kv_heads * ((c.queries * c.group() + 15) / 16) >= many) return "there are too many rows";
  if (c.cached && c.layout.page_size >= many) return "pages have 2^30 tokens or more";
  if (c.alibi.of_heads && c.keys + c.queries > std::int64_t{1} << 24)
    return "options.alibi: there are more than 2^24 keys and queries";
  return nullptr;
}

// Prefill has a block of 128 rows for every head and one query or 128, and walks all keys in it where it does
// not cut them.
const char* split_refuses(const Call& c) {
  if (c.queries > 64) return "there are more than 64 queries";
  if (c.keys < 4096) return "there are fewer than 4096 keys";
  return general_refuses(c);
}

std::int64_t general_bytes(const Call& c) { return general::plan_launch(c, Cut::by_the_plan).bytes(); }

void launch_general(const Call& c, const Workspace& workspace, Stream stream, Cut cut) {
  using namespace general;
  Launch l = plan_launch(c, cut);
  if (l.blocks == 0) return;
  std::byte* memory = workspace.rest();
  if (l.partial_bytes > 0) l.plan.partials.states = reinterpret_cast<float*>(memory);
  if (l.end_bytes > 0) l.plan.ends = reinterpret_cast<SavedEnd*>(memory + l.partial_bytes);
  l.plan.unfinished = reinterpret_cast<Unfinished*>(memory + l.partial_bytes + l.end_bytes);
  l.plan.unfinished_count = workspace.counters();
  const bool is_slab = l.kernel.dim == any_dim;
  if (is_slab) {
    launch_slabs(c, l, stream);
  } else {
    launch(l.kernel, c, l.plan, l.blocks, l.columns, stream);
    finish(c, l, l.plan, stream);
  }
  if (l.plan.partials.states) launch_partial_merge(c, l.plan.partials, l.plan.ends, stream);
  if (c.weights.data || c.scores.data) inspect(c, l.plan, stream);
}

}  // namespace heed::cuda
