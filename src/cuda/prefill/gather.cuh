// SPDX-License-Identifier: Apache-2.0
// A cache's pages in the workspace, where the copy engine cannot read them themselves (sixteens.cuh): as rows
// of tokens, which it loads as it does a caller's, or 16 bits wide in their order, where they are of int8.
// Over pages themselves, copied by threads, prefill had 63 to 66 % of its rate. Where warps of the
// multiplying kernel that have nothing else to do gather, three of a block, and say by stretches of keys what
// is done, 512 queries over 8192 keys took 141 us instead of 117 (H200, November 2026).
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/plan.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/launch_early.cuh"
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
    if (!c.cached || reads_pages(c)) return;
    const std::int64_t heads = (c.sequences ? 1 : c.batch) * c.kv_heads;
    keys = rounded(heads * extents.key_rows * c.dim * 2),
    values = rounded(heads * extents.key_rows * c.layout.value_width() * 2);
    if (!c.layout.is_quantized) return;
    scale_rows = extents.key_rows + scale_margin;
    scales = rounded(heads * scale_rows * 4);
  }
  std::int64_t all() const { return keys + values + 2 * scales; }
};

// Where a cache's tokens go, and scales.
struct GatheredRows {
  Tensor k, v;
  float *key_scales, *value_scales;
  std::int64_t scale_rows, key_rows;
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

// Pages of int8 keep their order and become 16 bits wide: integers stay what they are.
template <Type type>
__global__ void __launch_bounds__(gather_threads, 16)
    widen_int8_pages(const __grid_constant__ Call c, const __grid_constant__ GatheredRows rows) {
  launch_dependents();
  wait_for_prior_launches();  // the page tables
  const GatherTile tile;
  const int lane = thread_index() % 32;
  const Sequence& s = c.sequence(tile.b);
  if (tile.token >= s.keys) return;
  const cache::PageLayout& layout = c.layout;
  const unsigned char* const part = head_in_page(c, tile.b, tile.kv_head, tile.token);
  const std::int64_t in_page = tile.token % layout.page_size, at = s.first_key + tile.token,
                     head = rows.k.stride.batch == 0 ? tile.kv_head : tile.b * c.kv_heads + tile.kv_head;
  const int dim = static_cast<int>(tile.of_values ? layout.value_width() : c.dim);
  const auto* const from =
      reinterpret_cast<const uint2*>(part + (tile.of_values ? layout.values_at() : 0) + in_page * dim);
  auto* const to = static_cast<uint4*>(const_cast<void*>(tile.of_values ? rows.v.data : rows.k.data)) +
                   (head * rows.key_rows + at) * dim / 8;
#pragma unroll 8
  for (int n = lane; n < 2 * dim; n += 32) {
    const uint2 x = from[n];
    std::uint32_t a[2], z[2];
    widen_bytes<type>(a, x.x), widen_bytes<type>(z, x.y);
    to[n] = {a[0], a[1], z[0], z[1]};
  }
  if (lane >= 16) return;
  const auto* const scales_from = reinterpret_cast<const float*>(
      part + (tile.of_values ? layout.value_scales_at() : layout.key_scales_at()));
  float* const scales = (tile.of_values ? rows.value_scales : rows.key_scales) + head * rows.scale_rows;
  scales[at + lane] = tile.token + lane < s.keys ? scales_from[in_page + lane] : 0.0f;
  // A tile of keys may end behind all rows.
  if (at + 16 >= rows.scale_rows - scale_margin)
    for (int n = 0; n < scale_margin; n += 16) scales[at + 16 + n + lane] = 0;
}

// Puts the tokens of a cached call's sequences into this memory.
inline GatheredRows gathered(const Call& c, const Extents& extents, std::byte* memory, Stream stream) {
  const CacheBytes bytes(c, extents);
  GatheredRows rows{c.k, c.v, nullptr, nullptr, bytes.scale_rows, extents.key_rows};
  rows.k.data = memory, rows.v.data = memory + bytes.keys;
  rows.key_scales = reinterpret_cast<float*>(memory + bytes.keys + bytes.values);
  rows.value_scales = reinterpret_cast<float*>(memory + bytes.keys + bytes.values + bytes.scales);
  const dim3 blocks(static_cast<unsigned>((c.keys + 31) / 32), static_cast<unsigned>(c.kv_heads),
                    static_cast<unsigned>(c.batch));
  if (c.layout.is_quantized) {
    const auto kernel = c.q.type == Type::bf16 ? widen_int8_pages<Type::bf16> : widen_int8_pages<Type::f16>;
    launch_early(kernel, {blocks, gather_threads}, stream, c, rows);
    return rows;
  }
  const std::int64_t widest = std::max(c.dim, c.layout.value_width());
  gather_wide_pages<<<blocks, gather_threads, gather_threads / 32 * WideTile::bytes(widest), stream>>>(c,
                                                                                                       rows);
  check(cudaGetLastError(), "cuda.prefill: pages");
  return rows;
}

}  // namespace heed::cuda
