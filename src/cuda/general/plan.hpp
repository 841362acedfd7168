// SPDX-License-Identifier: Apache-2.0
// How the general kernel cuts a call: the constants of a block of threads, what a launch tells it, and the
// list of kernels that a call chooses from.
#pragma once
#include <cstdint>
#include <span>

#include "cuda/call.hpp"
#include "cuda/general/partials.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda::general {

// Warps of a block form a grid: row_warps of them have warp_rows rows each, and key_warps share the keys of a
// tile. Where rows are many, each warp takes all keys of a tile for 32 rows: a matrix out of shared memory
// then serves two products, which is what shared memory can feed. Where rows are few, warps divide the keys
// and their states are merged at the end.
//
// Sums of wide heads fill the registers of a warp with 16 rows. Two warps can have 32 rows together: each has
// the scores of half of a tile's keys, and all keys' values in half of the dimensions (shared_rows.cuh).
template <Type element, int head_dim, int value_width, int rows_of_warp, int warps_over_rows,
          int warps_over_keys, int keys_of_tile, int tiles_in_flight, int steps_held, int blocks_of_sm,
          int warps_of_row = 1>
struct Shape {
  static constexpr Type type = element;
  static constexpr int dim = head_dim, value_dim = value_width;  // multiples of 16; a call's may be smaller
  static constexpr int warp_rows = rows_of_warp, row_warps = warps_over_rows, key_warps = warps_over_keys;
  static constexpr int sharing = warps_of_row;  // warps that have the same rows and keys
  static constexpr bool sums_halves = false;    // in the order of two warps that share rows (HalvedSums)
  static constexpr int warps = row_warps * key_warps * sharing, threads = 32 * warps,
                       rows = warp_rows * row_warps;
  static constexpr int tile_keys = keys_of_tile, shared_keys = tile_keys / key_warps,
                       warp_keys = shared_keys / sharing;  // of scores
  static constexpr int out_dim = value_dim / sharing;      // of a warp's sums
  static constexpr int stages = tiles_in_flight;
  static constexpr int held_steps = steps_held;  // of 16 dimensions of the queries, that stay in registers
  static constexpr int blocks = blocks_of_sm;    // that run on a multiprocessor at once

  // Copies go among the products where these take the time. Where memory does, they cannot begin too early:
  // decode of 64 x 4096 keys took 416 us instead of 310 (H200, November 2026).
  static constexpr bool streams = key_warps == 1;

  static constexpr int row_tiles = warp_rows / 16, key_tiles = warp_keys / 8;  // of products
  static constexpr int dim_steps = dim / 16, out_steps = out_dim / 16, key_steps = warp_keys / 16;

  // Sums leave few registers: matrices are then loaded one product before they are used and no earlier.
  static constexpr bool is_crowded = row_tiles * out_dim >= 256;
  // Of few keys those of a whole step of 16 dimensions, and values two products early.
  static constexpr bool loads_steps = sharing > 1 && held_steps == 0;

  // Rows in shared memory are an odd number of 16-byte pieces apart: eight of them in a column lie in
  // different banks, and every place is one constant away from the first.
  static constexpr int pitch(int numbers) { return numbers * 2 + 16; }
  static constexpr int query_pitch = pitch(dim), value_pitch = pitch(value_dim);
  static constexpr int query_bytes = rows * query_pitch, value_bytes = tile_keys * value_pitch;

  static_assert(dim % 16 == 0 && out_dim % 16 == 0 && warp_keys % 16 == 0 && warp_rows % 16 == 0);
  static_assert(sharing == 1 || (sharing == 2 && key_warps == 1));
};

// A warp with all of the dimensions and keys, whose sums have the order, and so the bits, of two that share
// rows: weights of the second half of a tile's keys have a sum of their own, and values in the second half of
// the dimensions begin with them.
template <class Shape>
struct HalvedSums : Shape {
  static constexpr bool sums_halves = true;
};

// Whether the softmax scales products itself: their order is that of scores, and 8 / scale a number.
constexpr bool softmax_scales(const Call& c) { return c.scale_log2e >= 0x1p-96f; }

// Whether rows of a tensor can be copied 16 bytes at a time.
inline bool lies_in_16(const Tensor& t, std::int64_t dim) {
  constexpr std::int64_t far = std::int64_t{1} << 24;  // strides within a tile of keys are 32 bits
  return t.stride.dim == 1 && t.stride.length > -far && t.stride.length < far && dim % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.stride.batch % 8 == 0 &&
         t.stride.heads % 8 == 0 && t.stride.length % 8 == 0;
}

// Whether keys are asked for their documents; else these are ranges of keys.
constexpr bool scans_documents(const Call& c) { return c.document_count > 0 && !c.run_starts; }

// Rows of a tile that hold a number that is not finite.
constexpr int unfinished_rows = 64;
struct Unfinished {
  int head, first;  // of the KV heads of all sequences; the tile's first row
  std::uint64_t rows;
};

// n / by for 0 <= n < 2^31: a division takes a thread some 25 instructions, which nobody else's hide when a
// block begins.
struct Divisor {
  std::uint32_t multiplier = 0;
  int shift = 0;

  constexpr Divisor() = default;
  constexpr explicit Divisor(std::int64_t by) : shift(31) {
    while (by >> (shift - 31) > 1 || std::int64_t{1} << (shift - 31) < by) ++shift;
    multiplier = static_cast<std::uint32_t>(
        ((std::uint64_t{1} << shift) + static_cast<std::uint64_t>(by) - 1) / static_cast<std::uint64_t>(by));
  }
  constexpr int of(int n) const {
    return static_cast<int>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * multiplier >> shift);
  }
};

// What a launch tells the kernel besides the call.
struct Plan {
  int group;      // query heads of a KV head
  int row_tiles;  // of the longest sequence, of one KV head
  int heads;      // KV heads of all sequences
  int section;    // of these, whose tiles of rows are taken together, the longest first
  Divisor by_section, by_here, by_last;  // tiles of rows of a section, its heads, those of the last
  Divisor by_kv_heads, by_group;
  bool begins_at_0;  // every row sees keys from 0 on, and those of the first tile can be copied at once
  int units_each;    // of keys that a block does, one after the other; tiles, where weights are written
  int first_dim;     // of the values that a launch has: those of wide heads are done in slabs
  bool q_in_16, k_in_16, v_in_16, out_in_16;  // rows can be copied 16 bytes at a time
  int key_stride, value_stride;               // elements between keys, where they can
  Partials partials;
  SavedEnd* ends;          // (batch, heads, queries), where weights are asked for; else null
  Unfinished* unfinished;  // a list, where keys are not cut
  unsigned* unfinished_count;
};

enum class Source : std::uint8_t { arrays, pages, int8_pages };

// What a stage of scores can do besides ranges of keys; none: nothing else, and the scale keeps their order.
enum Feature : unsigned { none = 0, masking = 1, changing = 2, biasing = 4, dropping = 8, all_features = 15 };

constexpr int any_dim = 1 << 20, slab_dims = 256;  // of a kernel that takes every head in slabs

using Function = void (*)(Call, Plan);

struct Kernel {
  Type type;
  int dim, value_dim, rows;
  Source source;
  unsigned features;
  int threads, shared_bytes, blocks, tile_keys, key_warps, sharing;
  Function function;

  // For calls whose rows of a KV head all fit one block.
  bool is_for_few_rows() const { return key_warps > 1; }
};

// All of a type and a group, which are compiled together (kernels.cuh); groups are numbered from 0.
constexpr int group_count = 5;
template <Type type, int group>
std::span<const Kernel> kernels_of();

// Heads of any size (slabs.cuh): attention in slabs of the values, the pass that writes weights and scores,
// and those that finish rows, by the length of the tiles of keys that these had and by the order of sums.
struct SlabKernels {
  Kernel attend, inspect, finish_64, finish_32, finish_halves;
};
template <Type type>
SlabKernels slab_kernels();

}  // namespace heed::cuda::general
