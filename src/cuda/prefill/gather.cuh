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
#include "cuda/tile/hopper.cuh"
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
struct GatherTile {
  int b, kv_head, token;
  bool of_values;

  HEED_DEVICE GatherTile()
      : b(static_cast<int>(blockIdx.z)),
        kv_head(static_cast<int>(blockIdx.y)),
        token((static_cast<int>(blockIdx.x) * 2 + thread_index() / 64) * 16),
        of_values(thread_index() / 32 % 2 != 0) {}
};

// Pages of 16 bits, through shared memory: whole lines are read, and rows are written in parts of 64 bytes.
// Threads that turned parts of keys in registers asked for 32 bytes at a time: with a kernel that reads the
// rows, 8192 tokens of 8 heads of 128 took 30.0 us instead of 26.9, and 24.9 since what is read once leaves
// the second-level cache before the rows do (H200, November 2026).
class WideTile {
 public:
  static constexpr int bytes(std::int64_t dim) { return static_cast<int>((dim + 31) / 32 * 32 * 32); }

  HEED_DEVICE explicit WideTile(SharedAddress memory) : at(memory), lane(thread_index() % 32) {}

  // 16 tokens' keys as they lie in a page, (dim, 16 tokens), become rows of `dim`.
  HEED_DEVICE void copy_keys(const unsigned char* from, std::uint16_t* to, int dim) const {
    for (int n = lane; n < 2 * dim; n += 32) read(key_place(n / 2, n % 2), from + n * 16);
    wait();
    // A lane gets eight dimensions of a token: each matrix has two of them, of four lanes.
    const int d = lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2, own = lane % 4 * 8;
    for (int first = 0; first < dim; first += 32) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t x[4];
        load_matrices_transposed(x, at + key_place(first + d, half));
        if (first + own < dim)
          *reinterpret_cast<uint4*>(to + (half * 8 + lane / 4) * dim + first + own) = {x[0], x[1], x[2],
                                                                                       x[3]};
      }
    }
  }
  // (width / 16, 16 tokens, 16 dimensions) become rows of `dim`.
  HEED_DEVICE void copy_values(const unsigned char* from, std::uint16_t* to, int width, int dim) const {
    for (int n = lane; n < 2 * width; n += 32) read(value_place(n / 32, n / 2 % 16, n % 2), from + n * 16);
    wait();
    const int pieces = dim / 8;  // of a row
    for (int n = lane; n < 16 * pieces; n += 32) {
      const int token = n / pieces, piece = n % pieces;
      *reinterpret_cast<uint4*>(to + n * 8) = load_shared16(at + value_place(piece / 2, token, piece % 2));
    }
  }

 private:
  // Sixteen bytes, in lines of 128, swizzled so that eight that are read together are in different banks.
  HEED_DEVICE static int key_place(int d, int half) {
    return d / 4 * 128 + (d % 4 * 2 + half ^ d / 8 % 2 ^ d / 16 % 2 * 4) * 16;
  }
  HEED_DEVICE static int value_place(int sixteen, int token, int half) {
    return sixteen * 512 + token / 4 * 128 + (token % 4 * 2 + half ^ sixteen % 4 * 2) * 16;
  }
  HEED_DEVICE void read(int place, const unsigned char* from) const {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(at + place),
                 "l"(from), "l"(evict_first)
                 : "memory");
  }
  HEED_DEVICE static void wait() { commit_copies(), wait_for_copies<0>(), sync_warp(); }

  const SharedAddress at;
  const int lane;
};

static __global__ void __launch_bounds__(gather_threads)
    gather_wide_pages(const __grid_constant__ Call c, const __grid_constant__ GatheredRows rows) {
  extern __shared__ __align__(128) unsigned char memory[];
  const GatherTile tile;
  const Sequence& s = c.sequence(tile.b);
  if (tile.token >= s.keys) return;
  const cache::PageLayout& layout = c.layout;
  const unsigned char* const part = head_in_page(c, tile.b, tile.kv_head, tile.token);
  const std::int64_t in_page = tile.token % layout.page_size;
  const Row row = row_of(tile.of_values ? rows.v : rows.k, tile.b, tile.kv_head, s.first_key + tile.token);
  auto* const to = static_cast<std::uint16_t*>(const_cast<void*>(row.data)) + row.first;
  const int width = static_cast<int>(layout.value_width()), widest = max_of(static_cast<int>(c.dim), width);
  const WideTile copy(shared_address(memory) + thread_index() / 32 * WideTile::bytes(widest));
  if (tile.of_values)
    copy.copy_values(part + layout.values_at() + layout.value_element(in_page, 0) * 2, to, width,
                     static_cast<int>(c.value_dim));
  else
    copy.copy_keys(part + layout.key_element(in_page, 0) * 2, to, static_cast<int>(c.dim));
}

// The n-th part of 16 tokens, whose rows lie `row` elements apart, of pages of int8: eight keys of eight
// dimensions; sixteen dimensions of a value. Integers stay what they are.
template <Type type>
struct Int8Pages {
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

template <Type type>
__global__ void __launch_bounds__(gather_threads)
    gather_int8_pages(const __grid_constant__ Call c, const __grid_constant__ GatheredRows rows) {
  using Pages = Int8Pages<type>;
  const GatherTile tile;
  const int lane = thread_index() % 32;
  const Sequence& s = c.sequence(tile.b);
  if (tile.token >= s.keys) return;
  const cache::PageLayout& layout = c.layout;
  const unsigned char* const part = head_in_page(c, tile.b, tile.kv_head, tile.token);
  const std::int64_t in_page = tile.token % layout.page_size, at = s.first_key + tile.token;
  const Row row = row_of(tile.of_values ? rows.v : rows.k, tile.b, tile.kv_head, at);
  auto* const to = static_cast<std::uint16_t*>(const_cast<void*>(row.data)) + row.first;
  if (tile.of_values) {
    const unsigned char* const from = part + layout.values_at() + layout.value_element(in_page, 0);
#pragma unroll 4
    for (int n = lane; n < Pages::value_parts(layout.value_width()); n += 32)
      Pages::copy_values(from, to, c.value_dim, n);
  } else {
    const unsigned char* const from = part + layout.key_element(in_page, 0);
    for (int n = lane; n < Pages::key_parts(c.dim); n += 32) Pages::copy_keys(from, to, c.dim, n);
  }
  if (lane >= 16) return;
  const std::int64_t head = rows.k.stride.batch == 0 ? tile.kv_head : tile.b * c.kv_heads + tile.kv_head;
  const auto* const from = reinterpret_cast<const float*>(
      part + (tile.of_values ? layout.value_scales_at() : layout.key_scales_at()));
  float* const scales = (tile.of_values ? rows.value_scales : rows.key_scales) + head * rows.scale_rows;
  scales[at + lane] = tile.token + lane < s.keys ? from[in_page + lane] : 0.0f;
  // A tile of keys may end behind all rows.
  if (at + 16 >= rows.scale_rows - scale_margin)
    for (int n = 0; n < scale_margin; n += 16) scales[at + 16 + n + lane] = 0;
}

// Puts the tokens of a cached call's sequences into this memory.
inline GatheredRows gathered(const Call& c, const Extents& extents, std::byte* memory, Stream stream) {
  const CacheBytes bytes(c, extents);
  GatheredRows rows{c.k, c.v, nullptr, nullptr, bytes.scale_rows};
  rows.k.data = memory, rows.v.data = memory + bytes.keys;
  rows.key_scales = reinterpret_cast<float*>(memory + bytes.keys + bytes.values);
  rows.value_scales = reinterpret_cast<float*>(memory + bytes.keys + bytes.values + bytes.scales);
  const auto kernel = !c.layout.is_quantized   ? gather_wide_pages
                      : c.q.type == Type::bf16 ? gather_int8_pages<Type::bf16>
                                               : gather_int8_pages<Type::f16>;
  const std::int64_t blocks = (c.keys + 31) / 32,
                     widest = c.dim > c.layout.value_width() ? c.dim : c.layout.value_width();
  const int shared = c.layout.is_quantized ? 0 : gather_threads / 32 * WideTile::bytes(widest);
  kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(c.kv_heads),
                static_cast<unsigned>(c.batch)),
           gather_threads, shared, stream>>>(c, rows);
  check(cudaGetLastError(), "cuda.prefill: pages");
  return rows;
}

}  // namespace heed::cuda
