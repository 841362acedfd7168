// SPDX-License-Identifier: Apache-2.0
// What prefill's kernels are launched with.
#pragma once
#include <cuda.h>  // types of a tensor map

#include "cuda/call.hpp"
#include "cuda/general/partials.hpp"
#include "cuda/prefill/plan.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

// What a launch passes to the kernel beside the call.
struct PrefillPlan {
  CUtensorMap q, k, v, out, bias;  // (dim, rows, heads, entries), boxes of 64 dims
  unsigned* next_tile;             // 0 before and after, and the count of blocks that are done
  const int* tile_starts;  // (batch + 1): tiles of rows before each sequence; null where all are alike
  int tiles;               // of all sequences and heads
  PrefillOrder order;      // of the tiles, where all sequences are alike
  int key_rows;            // of k, which ends there
  PackedMask mask;         // of boolean masks and documents
  Partials partials;       // where keys are cut
  int tile_heads;          // that share a tile of rows, each as many of them: 1, or 2 or 4 of a KV head
  // Where keys are cut, the call's numbers in 32 bits, and what the host can divide: code that runs once
  // costs what its fetch takes, and a division of 64 bits is a hundred instructions (H200, November 2026: 3.8
  // us until the first tile was described). unit_tiles: of keys, where all sequences are alike.
  int group, kv_heads, unit_tiles;
  // Of an int8 cache: (entries, KV heads, rows), as k and v lie; scale_rows of each KV head, more than there
  // are keys by a tile.
  const float *key_scales, *value_scales;
  std::int64_t scale_rows;

  [[gnu::always_inline]] constexpr int kv_head(const Call& c, int head) const {
    return c.tiled_heads ? head % kv_heads : head / group;
  }
};

// Without its maps and its memory.
PrefillPlan prefill_plan(const Call&, const Extents&, const PrefillTiles&);

// The plan has no maps yet.
template <int dim, int value_dim, Type, PrefillKind>
void launch_prefill_kind(const Call&, const Extents&, const PrefillPlan&, Stream);

}  // namespace heed::cuda
