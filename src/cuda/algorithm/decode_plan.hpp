// SPDX-License-Identifier: Apache-2.0
// How decode cuts a call: along the keys, in stretches of whole blocks that run apart.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"

namespace heed::cuda {

// One block of threads fills a multiprocessor: with more warps each has less to do while nothing else can
// run.
constexpr int decode_threads = 256, decode_warps = 8;

// Rows of one KV head in eights; K and V where the caller has them, or in a cache's pages.
template <int head_dim, Type element, int eights, bool is_paged>
struct DecodeShape {
  static constexpr Type type = element;
  static constexpr bool paged = is_paged;
  static constexpr int dim = head_dim, rows = 8 * eights, row_eights = eights;
  static constexpr int tile_keys = 16,
                       tile_bytes = tile_keys * dim * 2;  // of a warp: one of keys, one of values
  static constexpr int stages = eights == 1 ? 3 : 2;
  // The warps' outputs meet in shared memory, some rows at a time.
  static constexpr int passes = eights < 2 ? 1 : eights / 2, pass_rows = rows / passes;
  static constexpr int mine = rows * dim / decode_threads;  // elements of a state in each thread
};

struct DecodePlan {
  int blocks_each;     // blocks of keys that one block of threads does: 1, 2 or a multiple of 4
  int splits;          // stretches that the longest sequence has
  int states_each;     // of the longest sequence, for each KV head
  float* states;       // (batch * kv_heads, states, floats of one)
  unsigned* arrivals;  // (batch * kv_heads), 0 before and after
};

// What a block of keys, or a chunk, leaves behind for each row: max, sum and the values under their weights.
template <class Shape>
constexpr std::int64_t decode_state_floats = Shape::rows * (2 + Shape::dim);

// Stretches shorter than a chunk leave a state for every block, others one for every chunk: so the states
// that are merged, and their order, are the same however a sequence is cut.
constexpr bool keeps_blocks(const DecodePlan& plan) { return plan.blocks_each < chunk_keys / block_keys; }

inline DecodePlan plan_decode(const Call& c, std::int64_t blocks_at_once) {
  const auto parts = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t heads = c.batch * c.kv_heads, blocks = parts(c.keys, block_keys);
  const std::int64_t wanted = heads == 0 ? 1 : blocks_at_once / heads;
  std::int64_t each = wanted <= 1 ? blocks : parts(blocks, wanted);
  constexpr std::int64_t whole = chunk_keys / block_keys;
  if (each > 2) each = parts(each, whole) * whole;
  if (each == 0) each = 1;
  DecodePlan plan{static_cast<int>(each), static_cast<int>(blocks == 0 ? 1 : parts(blocks, each)), 0, nullptr,
                  nullptr};
  if (plan.splits > 1)
    plan.states_each = static_cast<int>(keeps_blocks(plan) ? blocks : parts(c.keys, chunk_keys));
  return plan;
}

}  // namespace heed::cuda
