// SPDX-License-Identifier: Apache-2.0
// What a thread of decode knows: the call, the KV head and the stretch of keys of its block of threads, and
// the memory they share.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_loads.cuh"
#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/decode_state.cuh"
#include "cuda/algorithm/visible.cuh"
#include "cuda/call.hpp"

namespace heed::cuda {

// What the teams found in a unit of keys, for some rows; these begin in different banks.
template <class Shape>
struct TeamStates {
  alignas(16) float out[Shape::teams][Shape::end_rows][Shape::dim + 4];
  Numbers<2> ends[Shape::teams][Shape::end_rows];  // max, sum
};

template <class Shape>
class DecodeThread {
 public:
  // Where two blocks share the keys of a head: what the other one found for the rows that end here.
  struct Pair {
    TeamStates<Shape> found[2];  // in its units of keys
    std::uint64_t all_there;     // a barrier
  };
  struct Alone {};
  struct Shared {
    typename DecodeLoads<Shape>::Shared rings[Shape::teams];  // at a multiple of 1024
    // What this one found: in a unit, by rows; of a pair, in each of its units for the rows that end here.
    TeamStates<Shape> found[Shape::rows / Shape::end_rows];
    std::conditional_t<Shape::many, Pair, Alone> other;
    typename DecodeLoads<Shape>::Barriers barriers[Shape::teams];
    int left[Shape::rows];
    unsigned arrived;
  };

 protected:
  HEED_DEVICE DecodeThread(const Call& call, const DecodePlan& launch, Shared& memory)
      : c(call), plan(launch), shared(memory), kv_heads(static_cast<int>(c.kv_heads)), group(plan.group) {
    lane = thread_index() % 32, warp = thread_index() / 32;
    const int n = static_cast<int>(block_index());
    b = n / kv_heads, kv_head = n - b * kv_heads;
    // Not c.sequence(b), which would find the call's own by its address: far slower than as an argument.
    sequence = c.each;
    if (c.sequences) sequence = c.sequences[b];
    queries = static_cast<int>(sequence.queries), count = queries * group;
    if (count == 0) return;
    const KeyRange first = visible_keys(sequence, 0), last = visible_keys(sequence, queries - 1);
    some_see = {static_cast<int>(first.begin), static_cast<int>(last.end)};
    all_see = {static_cast<int>(last.begin), static_cast<int>(first.end)};
  }

  struct Keys {
    int begin = 0, end = 0;
  };

  HEED_DEVICE static int min_of(int x, int y) { return x < y ? x : y; }
  HEED_DEVICE static int max_of(int x, int y) { return x > y ? x : y; }

  // Rows are the queries in order, each for all heads that read the KV head.
  HEED_DEVICE int query_of(int r) const { return queries == 1 ? 0 : r / group; }
  HEED_DEVICE Query query(int r) const {
    const int n = query_of(r), member = r - n * group;
    const int h = c.tiled_heads ? member * kv_heads + kv_head : kv_head * group + member;
    return {b, h, n, sequence.first_query + n};
  }

  const Call& c;
  const DecodePlan& plan;
  Shared& shared;
  const int kv_heads, group;
  int lane, warp, b, kv_head;
  Sequence sequence;
  int queries, count;      // count: rows that are real
  Keys some_see, all_see;  // some row, or every one
  bool is_apart = false;   // other blocks of threads do the rest of these keys
};

}  // namespace heed::cuda
