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
#include "cuda/tile/warp.cuh"

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
  if (c.cached && c.layout.is_quantized && (changes > 0 || c.mask_count > 0 || c.document_count > 0))
    return "it takes no options over an int8 cache";
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

// Of a cache's keys and values as rows, and of their scales.
struct CacheBytes {
  std::int64_t keys = 0, values = 0, scales = 0, scale_rows = 0;  // scales: of keys, and as many of values

  CacheBytes(const Call& c, const Extents& extents) {
    if (!c.cached) return;
    const std::int64_t heads = (c.sequences ? 1 : c.batch) * c.kv_heads;
    keys = rounded(heads * extents.key_rows * c.dim * 2),
    values = rounded(heads * extents.key_rows * c.value_dim * 2);
    if (!c.layout.is_quantized) return;
    scale_rows = extents.key_rows + 128;  // the last tile may have as many more
    scales = rounded(heads * scale_rows * 4);
  }
  std::int64_t all() const { return keys + values + 2 * scales; }
};

}  // namespace

std::int64_t prefill_bytes(const Call& c, const Extents& extents) {
  std::int64_t states = 0;
  for (std::int64_t b = 0; b < c.batch; ++b)
    if (const std::int64_t units = prefill_units(c, c.sequence(b)); units > 1)
      states += c.sequence(b).queries * c.heads * units;
  return CacheBytes(c, extents).all() + states * partial_floats(c.value_dim) * 4 + prefill_mask(c).bytes();
}

namespace {

// Elements of a cache's pages, 16 tokens at a time (cache/layout.hpp says how they lie), to rows of tokens,
// `row` elements apart. Each of these functions does the n-th part of it.

// Of 16 bits: eight keys of eight dimensions, which lie (dims, 16 tokens); eight dimensions of a value.
struct WidePages {
  static constexpr int element_bytes = 2, key_parts = 4,
                       value_parts = 2;  // of dim / key_parts, value_width * 2

  HEED_DEVICE static void copy_keys(const unsigned char* from, std::uint16_t* to, std::int64_t row, int n) {
    from += n / 2 * 256 + n % 2 * 16, to += n % 2 * 8 * row + n / 2 * 8;
    std::uint32_t x[8][4];  // (dims, pairs of keys)
#pragma unroll
    for (int d = 0; d < 8; ++d) load4(x[d], from + d * 32);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int pick = j % 2 == 0 ? 0x5410 : 0x7632;
      *reinterpret_cast<uint4*>(to + j * row) = {
          __byte_perm(x[0][j / 2], x[1][j / 2], pick), __byte_perm(x[2][j / 2], x[3][j / 2], pick),
          __byte_perm(x[4][j / 2], x[5][j / 2], pick), __byte_perm(x[6][j / 2], x[7][j / 2], pick)};
    }
  }
  HEED_DEVICE static void copy_values(const unsigned char* from, std::uint16_t* to, std::int64_t row, int n) {
    const int d = n / 32 * 16 + n % 2 * 8;
    if (d < row)
      *reinterpret_cast<uint4*>(to + n / 2 % 16 * row + d) = *reinterpret_cast<const uint4*>(from + n * 16);
  }

  HEED_DEVICE static void load4(std::uint32_t (&to)[4], const unsigned char* from) {
    const uint4 x = *reinterpret_cast<const uint4*>(from);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
};

// Of int8: sixteen keys of eight dimensions; sixteen dimensions of a value. Integers stay what they are.
template <Type type>
struct Int8Pages {
  static constexpr int element_bytes = 1, key_parts = 8, value_parts = 1;

  HEED_DEVICE static void copy_keys(const unsigned char* from, std::uint16_t* to, std::int64_t row, int n) {
    from += n * 128, to += n * 8;
    std::uint32_t x[8][4];  // (dims, fours of keys)
#pragma unroll
    for (int d = 0; d < 8; ++d) WidePages::load4(x[d], from + d * 16);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const auto byte = [&](int d) { return x[d][j / 4] >> j % 4 * 8 & 255u; };
      const std::uint32_t low = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24,
                          high = byte(4) | byte(5) << 8 | byte(6) << 16 | byte(7) << 24;
      store8(to + j * row, low, high);
    }
  }
  HEED_DEVICE static void copy_values(const unsigned char* from, std::uint16_t* to, std::int64_t row, int n) {
    std::uint32_t x[4];
    WidePages::load4(x, from + n * 16);
    const int d = n / 16 * 16;
    to += n % 16 * row + d;
    if (d < row) store8(to, x[0], x[1]);
    if (d + 8 < row) store8(to + 8, x[2], x[3]);
  }

  HEED_DEVICE static void store8(std::uint16_t* to, std::uint32_t low, std::uint32_t high) {
    std::uint32_t a[2], z[2];
    widen_bytes<type>(a, low), widen_bytes<type>(z, high);
    *reinterpret_cast<uint4*>(to) = {a[0], a[1], z[0], z[1]};
  }
};

// Where rows of a cache's tokens go, and scales.
struct GatheredRows {
  Tensor k, v;
  float *key_scales, *value_scales;
  std::int64_t scale_rows;
};

// A warp has the keys or the values of 16 tokens of a KV head: with 64, 8192 tokens of 8 heads of 128 took
// 29.6 us instead of 25.8 (H200, November 2026). What lies behind a sequence's last token in its page comes
// along.
constexpr int gather_threads = 128;
template <class Pages>
__global__ void __launch_bounds__(gather_threads)
    gather_pages(const __grid_constant__ Call c, const __grid_constant__ GatheredRows rows) {
  const int warp = thread_index() / 32, lane = thread_index() % 32;
  const int b = static_cast<int>(blockIdx.z), kv_head = static_cast<int>(blockIdx.y),
            token = (static_cast<int>(blockIdx.x) * 2 + warp / 2) * 16;
  const bool of_values = warp % 2 != 0;
  const Sequence& s = c.sequence(b);
  if (token >= s.keys) return;
  const cache::PageLayout& layout = c.layout;
  const unsigned char* const part = head_in_page(c, b, kv_head, token);
  const std::int64_t in_page = token % layout.page_size, at = s.first_key + token;
  const Row row = row_of(of_values ? rows.v : rows.k, b, kv_head, at);
  auto* const to = static_cast<std::uint16_t*>(const_cast<void*>(row.data)) + row.first;
  if (of_values) {
    const unsigned char* const from =
        part + layout.values_at() + layout.value_element(in_page, 0) * Pages::element_bytes;
#pragma unroll 4
    for (int n = lane; n < Pages::value_parts * layout.value_width(); n += 32)
      Pages::copy_values(from, to, c.value_dim, n);
  } else {
    const unsigned char* const from = part + layout.key_element(in_page, 0) * Pages::element_bytes;
    for (int n = lane; n < c.dim / Pages::key_parts; n += 32) Pages::copy_keys(from, to, c.dim, n);
  }
  if (Pages::element_bytes == 1 && lane < 16) {
    const std::int64_t head = rows.k.stride.batch == 0 ? kv_head : b * c.kv_heads + kv_head;
    const auto* const from = reinterpret_cast<const float*>(
        part + (of_values ? layout.value_scales_at() : layout.key_scales_at()));
    (of_values ? rows.value_scales : rows.key_scales)[head * rows.scale_rows + at + lane] =
        from[in_page + lane];
  }
}

// Puts the tokens of a cached call's sequences into this memory.
GatheredRows gathered(const Call& c, const Extents& extents, std::byte* memory, Stream stream) {
  const CacheBytes bytes(c, extents);
  GatheredRows rows{c.k, c.v, nullptr, nullptr, bytes.scale_rows};
  rows.k.data = memory, rows.v.data = memory + bytes.keys;
  rows.key_scales = reinterpret_cast<float*>(memory + bytes.keys + bytes.values);
  rows.value_scales = reinterpret_cast<float*>(memory + bytes.keys + bytes.values + bytes.scales);
  const auto kernel = !c.layout.is_quantized   ? gather_pages<WidePages>
                      : c.q.type == Type::bf16 ? gather_pages<Int8Pages<Type::bf16>>
                                               : gather_pages<Int8Pages<Type::f16>>;
  const std::int64_t blocks = (c.keys + 31) / 32;
  kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(c.kv_heads),
                static_cast<unsigned>(c.batch)),
           gather_threads, 0, stream>>>(c, rows);
  check(cudaGetLastError(), "cuda.prefill: pages");
  return rows;
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
constexpr PrefillKind kinds[] = {plain, cut, capped, masked, sloped, biased, dropping, scaled};

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
  if (call.cached) {
    rows = gathered(call, extents, workspace.rest(), stream);
    c.k = rows.k, c.v = rows.v;
  }
  std::byte* const memory = workspace.rest() + CacheBytes(call, extents).all();
  PrefillPlan plan{};
  plan.next_tile = workspace.counters();
  plan.tile_starts = tiles.starts;
  plan.tiles = static_cast<int>(tiles.count * c.heads);
  if (!tiles.starts) plan.order = prefill_order(c, prefill_rows(c));
  plan.key_rows = static_cast<int>(extents.key_rows);
  plan.mask = packed(c, tiles.mask, memory, stream);
  plan.partials = partials_of(c, tiles);
  plan.partials.states = reinterpret_cast<float*>(memory);
  plan.key_scales = rows.key_scales, plan.value_scales = rows.value_scales, plan.scale_rows = rows.scale_rows;
  PrefillLaunch{c, extents, plan, stream}.run(prefill_dims_for(c));
  if (plan.partials.units > 0 && (plan.partials.starts || !tiles.starts))
    launch_partial_merge(c, plan.partials, nullptr, stream);
}

}  // namespace heed::cuda
