// SPDX-License-Identifier: Apache-2.0
// A cache's pages as rows of tokens in the workspace, which the copy engine loads as it does a caller's. Over
// pages themselves, copied by threads, prefill had 63 to 66 % of its rate. Where warps of the multiplying
// kernel that have nothing else to do gather, three of a block, and say by stretches of keys what is done,
// 512 queries over 8192 keys took 141 us instead of 117 (H200, November 2026).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/tile/block.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

constexpr int scale_margin = 128;  // the last tile of keys may have as many more
constexpr std::int64_t rounded(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Of a cache's keys and values as rows, and of their scales.
struct CacheBytes {
  std::int64_t keys = 0, values = 0, scales = 0, scale_rows = 0;  // scales: of keys, and as many of values

  CacheBytes(const Call& c, const Extents& extents) {
    if (!c.cached) return;
    const std::int64_t heads = (c.sequences ? 1 : c.batch) * c.kv_heads;
    keys = rounded(heads * extents.key_rows * c.dim * 2),
    values = rounded(heads * extents.key_rows * c.value_dim * 2);
    if (!c.layout.is_quantized) return;
    scale_rows = extents.key_rows + scale_margin;
    scales = rounded(heads * scale_rows * 4);
  }
  std::int64_t all() const { return keys + values + 2 * scales; }
};

// The n-th part of 16 tokens, whose rows lie `row` elements apart. Pages of 16 bits: four keys of eight
// dimensions, which lie (dims, 16 tokens); eight dimensions of a value. Every lane of a warp has a part of
// heads of 64: with eight keys to a part a launch took 25 us instead of 22 (8192 tokens of 8 heads of 128;
// H200, November 2026).
struct WidePages {
  static constexpr int element_bytes = 2;
  static constexpr std::int64_t key_parts(std::int64_t dim) { return dim / 2; }
  static constexpr std::int64_t value_parts(std::int64_t width) { return width * 2; }

  HEED_DEVICE static void copy_keys(const unsigned char* from, std::uint16_t* to, std::int64_t row, int n) {
    from += n / 4 * 256 + n % 4 * 8, to += n % 4 * 4 * row + n / 4 * 8;
    uint2 x[8];  // of a dimension
#pragma unroll
    for (int d = 0; d < 8; ++d) x[d] = *reinterpret_cast<const uint2*>(from + d * 32);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto of = [&](int d) { return j < 2 ? x[d].x : x[d].y; };  // two keys
      const auto pair = [&](int d) { return __byte_perm(of(d), of(d + 1), j % 2 == 0 ? 0x5410 : 0x7632); };
      *reinterpret_cast<uint4*>(to + j * row) = {pair(0), pair(2), pair(4), pair(6)};
    }
  }
  HEED_DEVICE static void copy_values(const unsigned char* from, std::uint16_t* to, std::int64_t row, int n) {
    const int d = n / 32 * 16 + n % 2 * 8;
    if (d < row)
      *reinterpret_cast<uint4*>(to + n / 2 % 16 * row + d) = *reinterpret_cast<const uint4*>(from + n * 16);
  }
};

// Pages of int8: eight keys of eight dimensions; sixteen dimensions of a value. Integers stay what they are.
template <Type type>
struct Int8Pages {
  static constexpr int element_bytes = 1;
  static constexpr std::int64_t key_parts(std::int64_t dim) { return dim / 4; }
  static constexpr std::int64_t value_parts(std::int64_t width) { return width; }

  HEED_DEVICE static void copy_keys(const unsigned char* from, std::uint16_t* to, std::int64_t row, int n) {
    from += n / 2 * 128 + n % 2 * 8, to += n % 2 * 8 * row + n / 2 * 8;
    uint2 x[8];  // of a dimension
#pragma unroll
    for (int d = 0; d < 8; ++d) x[d] = *reinterpret_cast<const uint2*>(from + d * 16);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto of = [&](int d) { return j < 4 ? x[d].x : x[d].y; };  // four keys
      const auto four = [&](int d) {
        const unsigned pair = j % 4 < 2 ? 0x5140 : 0x7362;
        return __byte_perm(__byte_perm(of(d), of(d + 1), pair), __byte_perm(of(d + 2), of(d + 3), pair),
                           j % 2 == 0 ? 0x5410 : 0x7632);
      };
      store8(to + j * row, four(0), four(4));
    }
  }
  HEED_DEVICE static void copy_values(const unsigned char* from, std::uint16_t* to, std::int64_t row, int n) {
    const uint4 x = *reinterpret_cast<const uint4*>(from + n * 16);
    const int d = n / 16 * 16;
    to += n % 16 * row + d;
    if (d < row) store8(to, x.x, x.y);
    if (d + 8 < row) store8(to + 8, x.z, x.w);
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
    for (int n = lane; n < Pages::value_parts(layout.value_width()); n += 32)
      Pages::copy_values(from, to, c.value_dim, n);
  } else {
    const unsigned char* const from = part + layout.key_element(in_page, 0) * Pages::element_bytes;
    for (int n = lane; n < Pages::key_parts(c.dim); n += 32) Pages::copy_keys(from, to, c.dim, n);
  }
  if (Pages::element_bytes == 1 && lane < 16) {
    const std::int64_t head = rows.k.stride.batch == 0 ? kv_head : b * c.kv_heads + kv_head;
    const auto* const from = reinterpret_cast<const float*>(
        part + (of_values ? layout.value_scales_at() : layout.key_scales_at()));
    float* const scales = (of_values ? rows.value_scales : rows.key_scales) + head * rows.scale_rows;
    scales[at + lane] = token + lane < s.keys ? from[in_page + lane] : 0.0f;
    // A tile of keys may end behind all rows.
    if (at + 16 >= rows.scale_rows - scale_margin)
      for (int n = 0; n < scale_margin; n += 16) scales[at + 16 + n + lane] = 0;
  }
}

// Puts the tokens of a cached call's sequences into this memory.
inline GatheredRows gathered(const Call& c, const Extents& extents, std::byte* memory, Stream stream) {
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

}  // namespace heed::cuda
