// SPDX-License-Identifier: Apache-2.0
// Which calls the kernels of the matrix units take, and prefill's launch. The kernels themselves are compiled
// in files of their own, which the build writes: each takes long.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>

#include "cuda/prefill/launch.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/tensor_map.hpp"
#include "cuda/tile/visible.cuh"

namespace heed::cuda {

const char* matrix_units_refuse(const Call& c) {
  if (c.q.type != Type::bf16 && c.q.type != Type::f16) return "it takes bf16 and f16";
  if (c.k.type != c.q.type || c.v.type != c.q.type) return "it takes q, k and v of one type";
  if (c.front > 0 || c.gap_count > 0) return "it takes no front of a window";
  if (c.weights.data) return "weights were asked for";
  if (c.scores.data) return "scores were asked for";
  if (!std::isfinite(c.scale_log2e)) return "options.scale times log2(e) is beyond the range of f32";
  if (!std::isfinite(c.softcap_log2e)) return "options.softcap times log2(e) is beyond the range of f32";
  if (c.keys >= std::int64_t{1} << 30 || c.queries >= std::int64_t{1} << 30)
    return "there are 2^30 rows or more";
  return nullptr;
}

namespace {

// Options beside ranges of keys. One at a time changes scores or weights: kernels for more would need more
// registers than there are.
const char* options_refuse(const Call& c) {
  const int changes =
      (c.cap != 0) + (c.bias.data != nullptr) + (c.alibi.of_heads != nullptr) + (c.drop_below > 0);
  const bool is_masked = has_masks(prefill_kind(c));
  if (changes > 1) return "it takes one of softcap, bias, ALiBi and dropout";
  if (c.cap != 0 && (c.mask_count > 0 || c.document_count > 0)) return "it takes no softcap beside masks";
  if (c.softcap_log2e > 512) return "options.softcap is more than its scores are right to";
  if (!is_masked) return nullptr;
  for (std::int64_t b = 0; c.sequences && b < c.batch; ++b)
    if (c.sequences[b].first_query != 0)
      return "it takes no masks, bias, ALiBi or dropout of packed sequences";
  for (std::int64_t n = 0; c.alibi.of_heads && n < (c.alibi.step == 0 ? 1 : c.batch) * c.heads; ++n)
    if (!(c.alibi.of_heads[n] >= 0)) return "it takes slopes of ALiBi that are not negative";
  if (c.bias.data && !is_mappable(c.bias)) return "it takes a bias of bf16 or f16 whose rows lie on 16 bytes";
  constexpr std::int64_t max_mask_bytes = 256'000'000;
  if (packed_mask(c, 128).bytes() > max_mask_bytes) return "its masks are beyond 256 MB in bits";
  return nullptr;
}

// Whether masks are one of bytes that can be read 16 at a time.
HEED_DEVICE bool is_one_of_bytes(const Call& c) {
  if (c.mask_count != 1 || c.document_count > 0) return false;
  const BoolTensor& mask = c.masks[0];
  const TensorStrides& s = mask.where.stride;
  return !mask.is_tree && s.dim == 1 &&
         (s.batch | s.heads | s.length | reinterpret_cast<std::int64_t>(mask.where.data)) % 16 == 0;
}
// A bit for each of 32 bytes that is not 0.
HEED_DEVICE std::uint32_t bits_of_bytes(const uint4* from) {
  std::uint32_t bits = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint4 x = from[n];
    const std::uint32_t fours[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const std::uint32_t high = (((fours[m] & 0x7f7f7f7fu) + 0x7f7f7f7fu) | fours[m]) & 0x80808080u;
      bits |= ((high >> 7) * 0x204081u >> 21 & 15) << (16 * n + 4 * m);  // side by side
    }
  }
  return bits;
}
// A bit for each of 32 keys that masks let the query see.
HEED_DEVICE std::uint32_t seen_of_32(const Call& c, const Query& q, int first, bool in_bytes) {
  if (in_bytes && first + 32 <= c.keys) {
    const BoolTensor& mask = c.masks[0];
    const auto* const from = static_cast<const std::uint8_t*>(mask.where.data) + row_of(mask.where, q).first;
    const std::uint32_t bits = bits_of_bytes(reinterpret_cast<const uint4*>(from + first));
    return mask.visible_when ? bits : ~bits;
  }
  std::uint32_t bits = 0;
  for (int n = 0; n < 32 && first + n < c.keys; ++n)
    bits |= static_cast<std::uint32_t>(masks_allow(c, q, first + n)) << n;
  return bits;
}

// Each block some tiles of keys of 64 rows, its threads a word of a row each.
constexpr int pack_threads = 256;
__global__ void __launch_bounds__(pack_threads)
    pack_mask(const __grid_constant__ Call c, const __grid_constant__ PackedMask mask) {
  const int block = static_cast<int>(blockIdx.x), tile_words = mask.tile_keys / 32;
  const int b = static_cast<int>(blockIdx.z) / mask.heads, h = static_cast<int>(blockIdx.z) % mask.heads;
  auto* const words = const_cast<std::uint32_t*>(mask.words);
  const bool in_bytes = is_one_of_bytes(c);
  for (int tile = static_cast<int>(blockIdx.y); tile < mask.tiles; tile += static_cast<int>(gridDim.y)) {
    bool sees_any = false, sees_all = true;
    for (int n = thread_index(); n < PackedMask::block_rows * tile_words; n += pack_threads) {
      const int i = block * PackedMask::block_rows + n / tile_words, w = tile * tile_words + n % tile_words;
      if (i >= mask.rows) break;
      const std::uint32_t word = seen_of_32(c, {b, h, i, i}, w * 32, in_bytes);
      const int keys = min_of(32, max_of(static_cast<int>(c.keys) - w * 32, 0));
      sees_any = sees_any || word != 0;
      sees_all = sees_all && (keys == 0 || ~word << (32 - keys) == 0);
      words[(mask.matrix(b, h) * mask.rows + i) * mask.row_words + w] = word;
    }
    const bool any_key = __syncthreads_or(sees_any), all_keys = __syncthreads_and(sees_all);
    if (thread_index() == 0)
      const_cast<TileClass*>(mask.classes)[(mask.matrix(b, h) * mask.blocks() + block) * mask.tiles + tile] =
          all_keys  ? TileClass::full
          : any_key ? TileClass::mixed
                    : TileClass::empty;
  }
}

// Puts the mask into this memory.
PackedMask packed(const Call& c, PackedMask mask, std::byte* memory, Stream stream) {
  if (mask.row_words == 0) return mask;
  mask.words = reinterpret_cast<const std::uint32_t*>(memory);
  mask.classes = reinterpret_cast<const TileClass*>(memory + mask.word_bytes());
  const int splits = mask.tiles < 32 ? mask.tiles : 32;
  pack_mask<<<dim3(static_cast<unsigned>(mask.blocks()), static_cast<unsigned>(splits),
                   static_cast<unsigned>(mask.matrices())),
              pack_threads, 0, stream>>>(c, mask);
  check(cudaGetLastError(), "cuda.prefill: masks");
  return mask;
}

}  // namespace

const char* prefill_refuses(const Call& c) {
  if (const char* reason = matrix_units_refuse(c)) return reason;
  if (const char* reason = options_refuse(c)) return reason;
  const auto is_width = [](std::int64_t dim) { return dim >= 8 && dim <= 256 && dim % 8 == 0; };
  if (!is_width(c.dim) || !is_width(c.value_dim)) return "it takes heads of 8 to 256 in steps of 8";
  if (c.out.type != c.q.type) return "it writes the type of q";
  if (!(c.scale_log2e > 0)) return "it takes a positive scale";
  if (c.keys == 0) return "there are no keys";
  for (const Tensor* t : {&c.q, &c.k, &c.v, &c.out})
    if (!is_mappable(*t)) return "the copy engine wants rows without gaps, and everything on 16 bytes";
  return nullptr;
}

std::int64_t prefill_rows(const Call& c) {
  return 64 * prefill_groups(prefill_dims_for(c).dim, prefill_kind(c));
}

std::int64_t prefill_units(const Call& c, const Sequence& s) {
  return prefill_kind(c) == PrefillKind::cut && cuts_keys(s) ? (s.keys + cut_keys - 1) / cut_keys : 1;
}

PackedMask prefill_mask(const Call& c) { return packed_mask(c, prefill_keys(prefill_dims_for(c))); }

namespace {

std::int64_t rounded(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Of the keys, or values, of a cache as rows.
std::int64_t row_bytes(const Call& c, const Extents& extents, std::int64_t dim) {
  const std::int64_t entries = c.sequences ? 1 : c.batch;
  return c.cached ? rounded(entries * c.kv_heads * extents.key_rows * dim * 2) : 0;
}

}  // namespace

std::int64_t prefill_bytes(const Call& c, const Extents& extents) {
  std::int64_t states = 0;
  for (std::int64_t b = 0; b < c.batch; ++b)
    if (const std::int64_t units = prefill_units(c, c.sequence(b)); units > 1)
      states += c.sequence(b).queries * c.heads * units;
  return row_bytes(c, extents, c.dim) + row_bytes(c, extents, c.value_dim) +
         states * partial_floats(c.value_dim) * 4 + prefill_mask(c).bytes();
}

namespace {

// Eight keys of eight dimensions, which lie (dims, 16 tokens) in a page: `from` has the first dimension's,
// and rows of `to` are keys.
HEED_DEVICE void transpose_keys(const unsigned char* from, std::uint16_t* to, std::int64_t row) {
  std::uint32_t x[8][4];  // (dims, pairs of keys)
#pragma unroll
  for (int d = 0; d < 8; ++d) {
    const uint4 keys = *reinterpret_cast<const uint4*>(from + d * 32);
    x[d][0] = keys.x, x[d][1] = keys.y, x[d][2] = keys.z, x[d][3] = keys.w;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    std::uint32_t pairs[4];  // of dimensions
#pragma unroll
    for (int n = 0; n < 4; ++n)
      pairs[n] = __byte_perm(x[2 * n][j / 2], x[2 * n + 1][j / 2], j % 2 == 0 ? 0x5410 : 0x7632);
    *reinterpret_cast<uint4*>(to + j * row) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
}

// A cache's pages as rows (cache/layout.hpp says how they lie): a warp has the keys or the values of 16
// tokens of a KV head. What lies behind a sequence's last token in its page comes along.
constexpr int gather_threads = 128, gather_blocks = gather_threads / 64;
__global__ void __launch_bounds__(gather_threads)
    gather_pages(const __grid_constant__ Call c, const __grid_constant__ Tensor k,
                 const __grid_constant__ Tensor v) {
  const int warp = thread_index() / 32, lane = thread_index() % 32;
  const int b = static_cast<int>(blockIdx.z), kv_head = static_cast<int>(blockIdx.y),
            token = (static_cast<int>(blockIdx.x) * gather_blocks + warp % gather_blocks) * 16;
  const Sequence& s = c.sequence(b);
  if (token >= s.keys) return;
  const cache::PageLayout& layout = c.layout;
  const unsigned char* const part = head_in_page(c, b, kv_head, token);
  const std::int64_t in_page = token % layout.page_size;
  const bool of_values = warp >= gather_blocks;
  const Row row = row_of(of_values ? v : k, b, kv_head, s.first_key + token);
  auto* const to = static_cast<std::uint16_t*>(const_cast<void*>(row.data)) + row.first;
  if (!of_values) {
    const unsigned char* const from = part + layout.key_element(in_page, 0) * 2;
    for (int n = lane; n < c.dim / 4; n += 32)
      transpose_keys(from + n / 2 * 256 + n % 2 * 16, to + n % 2 * 8 * c.dim + n / 2 * 8, c.dim);
  } else {
    const unsigned char* const from = part + layout.values_at() + layout.value_element(in_page, 0) * 2;
#pragma unroll 4
    for (int n = lane; n < 2 * layout.value_width(); n += 32) {
      const int d = n / 32 * 16 + n % 2 * 8;
      if (d < c.value_dim)
        *reinterpret_cast<uint4*>(to + n / 2 % 16 * c.value_dim + d) =
            *reinterpret_cast<const uint4*>(from + n * 16);
    }
  }
}

// The call over rows in this memory.
Call gathered(const Call& c, const Extents& extents, std::byte* memory, Stream stream) {
  Call made = c;
  made.cached = nullptr;
  made.k.data = memory, made.v.data = memory + row_bytes(c, extents, c.dim);
  const std::int64_t blocks = (c.keys + 16 * gather_blocks - 1) / (16 * gather_blocks);
  gather_pages<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(c.kv_heads),
                      static_cast<unsigned>(c.batch)),
                 gather_threads, 0, stream>>>(c, made.k, made.v);
  check(cudaGetLastError(), "cuda.prefill: pages");
  return made;
}

// Without its memory.
Partials partials_of(const Call& c, const PrefillTiles& tiles) {
  Partials partials;
  if (prefill_kind(c) != PrefillKind::cut) return partials;
  const auto group = static_cast<int>(c.group());
  partials.starts = tiles.partial_starts;
  partials.units = static_cast<int>((c.keys + cut_keys - 1) / cut_keys);
  partials.rows = group * static_cast<int>(std::min(c.queries, max_cut_queries));
  partials.unit_keys = static_cast<int>(cut_keys);
  partials.cut_rows = group * static_cast<int>(max_cut_queries);
  return partials;
}

using enum PrefillKind;
constexpr PrefillKind kinds[] = {plain, cut, capped, masked, sloped, biased, dropping, paged};

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
  const Call c = call.cached ? gathered(call, extents, workspace.rest(), stream) : call;
  std::byte* const memory =
      workspace.rest() + row_bytes(call, extents, c.dim) + row_bytes(call, extents, c.value_dim);
  PrefillPlan plan{};
  plan.next_tile = workspace.counters();
  plan.tile_starts = tiles.starts;
  plan.tiles = static_cast<int>(tiles.count * c.heads);
  if (!tiles.starts) plan.order = prefill_order(c, prefill_rows(c));
  plan.key_rows = static_cast<int>(extents.key_rows);
  plan.mask = packed(c, tiles.mask, memory, stream);
  plan.partials = partials_of(c, tiles);
  plan.partials.states = reinterpret_cast<float*>(memory);
  PrefillLaunch{c, extents, plan, stream}.run(prefill_dims_for(c));
  if (plan.partials.units > 0 && (plan.partials.starts || !tiles.starts))
    launch_partial_merge(c, plan.partials, nullptr, stream);
}

}  // namespace heed::cuda
