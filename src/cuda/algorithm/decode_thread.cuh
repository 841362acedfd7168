// SPDX-License-Identifier: Apache-2.0
// What a thread of decode knows: the call, the KV head and the stretch of keys of its block of threads, and
// the memory they share.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_loads.cuh"
#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/visible.cuh"
#include "cuda/call.hpp"

namespace heed::cuda {

template <class Shape>
class DecodeThread {
 public:
  struct Shared {
    typename DecodeLoads<Shape>::Shared rings[Shape::teams];  // at a multiple of 1024
    // What the teams found in a unit of keys; rows begin in different banks.
    alignas(16) float out[Shape::teams][Shape::rows][Shape::dim + 4];
    float max[Shape::teams][Shape::rows], sum[Shape::teams][Shape::rows];
    typename DecodeLoads<Shape>::Barriers barriers[Shape::teams];
    std::uint64_t met;  // a barrier for what the other block of a pair sends
    int left[Shape::rows];
    unsigned arrived;
  };

 protected:
  HEED_DEVICE DecodeThread(const Call& call, const DecodePlan& launch, Shared& memory)
      : c(call), plan(launch), shared(memory), kv_heads(static_cast<int>(c.kv_heads)), group(plan.group) {
    lane = thread_index() % 32, warp = thread_index() / 32;
    const int n = static_cast<int>(block_index());
    b = n / kv_heads, kv_head = n - b * kv_heads;
    const Sequence& s = c.sequence(b);
    queries = static_cast<int>(s.queries), count = queries * group;
    if (count == 0) return;
    const KeyRange first = visible_keys(c, b, 0), last = visible_keys(c, b, queries - 1);
    some_see = {static_cast<int>(first.begin), static_cast<int>(last.end)};
    all_see = {static_cast<int>(last.begin), static_cast<int>(first.end)};
  }

  struct Keys {
    int begin = 0, end = 0;
  };

  HEED_DEVICE static int least_of(int x, int y) { return x < y ? x : y; }
  HEED_DEVICE static int most_of(int x, int y) { return x > y ? x : y; }

  // Rows are the queries in order, each for all heads that read the KV head.
  HEED_DEVICE int query_of(int r) const { return queries == 1 ? 0 : r / group; }
  HEED_DEVICE Query query(int r) const {
    const int n = query_of(r), member = r - n * group;
    const int h = c.tiled_heads ? member * kv_heads + kv_head : kv_head * group + member;
    return {b, h, n, c.sequence(b).first_query + n};
  }

  const Call& c;
  const DecodePlan& plan;
  Shared& shared;
  const int kv_heads, group;
  int lane, warp, b, kv_head;
  int queries, count;      // count: rows that are real
  Keys some_see, all_see;  // some row, or every one
  bool is_apart = false;   // other blocks of threads do the rest of these keys
};

}  // namespace heed::cuda
