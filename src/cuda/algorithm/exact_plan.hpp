// SPDX-License-Identifier: Apache-2.0
// How a call is cut into blocks of threads for the exact kernel, and the memory they leave things in for each
// other.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"

namespace heed::cuda {

constexpr int exact_threads = 128, exact_rows = 64;

// What a row's scores are measured against once all its keys are in.
struct RowEnd {
  float max, sum;
};

// The same in double precision: the largest score, sink included, and the sum against it.
struct WideEnd {
  double max, sum;
  bool saw_a_key;
};

// Where a row ends, for whoever writes its weights afterwards.
struct KeptEnd {
  RowEnd row;
  WideEnd wide;  // where the sum is NaN
};

// Chunks of keys may run apart: what each leaves behind waits in `partials`, and the block that arrives last
// merges them in order.
struct ExactPlan {
  std::int64_t row_tiles, value_parts, splits;  // splits: 1, or the chunks of the longest sequence
  float* partials;                              // (tiles, splits, state)
  unsigned* arrivals;                           // one for each tile of rows, 0 before and after
  KeptEnd* ends;                                // (batch, heads, queries), or null
};

// Whether rows of a tensor can be read and written four floats at a time.
constexpr bool lies_in_fours(const Tensor& t) {
  return t.type == Type::f32 && t.dim == 1 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 &&
         t.batch % 4 == 0 && t.heads % 4 == 0 && t.length % 4 == 0;
}

// A plan without its memory, and how much it takes.
struct ExactLaunch {
  ExactPlan plan;
  int slabs;           // of 64 dimensions of the values, done together
  bool in_place;       // K and V are copied as they lie
  std::int64_t tiles;  // of rows, of all heads and parts of the values
  std::int64_t partial_floats, kept_ends;

  std::int64_t blocks() const { return tiles * plan.splits; }
};

// `blocks_at_once` is what the device can run: chunks run apart where tiles alone would leave it idle. No bit
// of a result depends on that.
inline ExactLaunch plan_exact(const Call& c, std::int64_t blocks_at_once) {
  const auto parts = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  ExactLaunch launch{};
  launch.slabs = c.value_dim <= 64 ? 1 : 2;
  launch.in_place =
      !c.cached && lies_in_fours(c.k) && lies_in_fours(c.v) && c.dim % 4 == 0 && c.value_dim % 4 == 0;
  launch.plan.row_tiles = parts(c.queries * c.group(), exact_rows);
  launch.plan.value_parts = parts(c.value_dim, 64 * launch.slabs);
  launch.tiles = launch.plan.row_tiles * launch.plan.value_parts * c.kv_heads * c.batch;
  const std::int64_t chunks = parts(c.keys, chunk_keys);
  launch.plan.splits = chunks > 1 && launch.tiles < blocks_at_once ? chunks : 1;
  if (launch.plan.splits > 1) launch.partial_floats = launch.blocks() * exact_rows * (2 + 64 * launch.slabs);
  if (c.weights.data) launch.kept_ends = c.batch * c.heads * c.queries;
  return launch;
}

}  // namespace heed::cuda
