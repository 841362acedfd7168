// SPDX-License-Identifier: Apache-2.0
// How decode cuts a call: along the keys, in stretches of whole units that run apart.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"

namespace heed::cuda {

// One block of threads fills a multiprocessor: with more warps each has less to do while nothing else can
// run.
constexpr int decode_threads = 256, decode_warps = 8;

// Rows of one KV head, 8 or 32; K and V where the caller has them, or in a cache's pages.
//
// A team of warps shares the tiles of keys that it loads, and divides the rows: so no warp has more than 16.
// The teams' states meet after every unit of keys. Of many rows they are as many bytes as the keys
// themselves, so that their units are long.
template <int head_dim, Type element, bool has_many_rows, bool is_paged>
struct DecodeShape {
  static constexpr Type type = element;
  static constexpr bool paged = is_paged;
  static constexpr int dim = head_dim, rows = has_many_rows ? 32 : 8;
  static constexpr int team_warps = has_many_rows ? 2 : 1, teams = decode_warps / team_warps;
  static constexpr int eights = rows / 8 / team_warps;  // of rows, in each warp
  static constexpr int tile_keys = 16,
                       tile_bytes = tile_keys * dim * 2;  // of a team: one of keys, one of values
  static constexpr int stages = has_many_rows ? 4 : 3;
  static constexpr int unit_keys = static_cast<int>(has_many_rows ? chunk_keys : block_keys);
  // Of a state: rows that a warp has once the teams' have met, and neighbouring dimensions of each lane.
  static constexpr int own_rows = rows / decode_warps, own_dims = dim / 32;
};

constexpr std::int64_t few_decode_rows = 8, most_decode_rows = 32;
constexpr bool has_many_rows(const Call& c) { return c.queries * c.group() > few_decode_rows; }

struct DecodePlan {
  int group;        // query heads that read a KV head
  int units_each;   // units of keys that one block of threads does
  int splits;       // stretches that the longest sequence has
  int states_each;  // of the longest sequence, for each KV head
  bool
      keeps_units;  // a stretch is shorter than a chunk and leaves the state of each unit, else of each chunk
  float* states;    // (batch * kv_heads, states, floats of one)
  unsigned* arrivals;  // (batch * kv_heads), 0 before and after
};

// What a unit of keys, or a chunk, leaves behind for each row: max, sum and the values under their weights.
constexpr std::int64_t decode_state_floats(std::int64_t rows, std::int64_t dim) { return rows * (2 + dim); }

// The states that are merged, and their order, are the same however a sequence is cut: units make a chunk,
// and chunks the row.
inline DecodePlan plan_decode(const Call& c, std::int64_t blocks_at_once) {
  const auto parts = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t unit = has_many_rows(c) ? chunk_keys : block_keys, in_chunk = chunk_keys / unit;
  const std::int64_t heads = c.batch * c.kv_heads, units = parts(c.keys, unit);
  const std::int64_t wanted = heads == 0 ? 1 : blocks_at_once / heads;
  constexpr std::int64_t most_splits = 65535;  // that a launch has room for
  std::int64_t each = wanted <= 1 ? units : parts(units, wanted < most_splits ? wanted : most_splits);
  if (each > 2) each = parts(each, in_chunk) * in_chunk;
  if (each == 0) each = 1;
  DecodePlan plan{};
  plan.group = static_cast<int>(c.group());
  plan.units_each = static_cast<int>(each);
  plan.splits = static_cast<int>(units == 0 ? 1 : parts(units, each));
  plan.keeps_units = each < in_chunk;
  if (plan.splits > 1)
    plan.states_each = static_cast<int>(plan.keeps_units ? units : parts(c.keys, chunk_keys));
  return plan;
}

}  // namespace heed::cuda
