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

template <class Shape>
class DecodeThread {
 protected:
  static constexpr int dim = Shape::dim, rows = Shape::rows, eights = Shape::row_eights, mine = Shape::mine;

 public:
  struct Shared {
    typename DecodeLoads<Shape>::Shared rings[decode_warps];
    alignas(16) float out[decode_warps][Shape::pass_rows][dim];
    alignas(16) std::uint32_t q[eights > 1 ? eights : 1][eights > 1 ? dim / 16 : 1][32][2];
    float max[decode_warps][rows], sum[decode_warps][rows];
    float warp_factor[decode_warps][rows], before[rows], now[rows];  // what states are multiplied with
    int left[rows];
    unsigned arrived;
  };

 protected:
  HEED_DEVICE DecodeThread(const Call& call, const DecodePlan& launch, Shared& memory)
      : c(call), plan(launch), shared(memory), kv_heads(static_cast<int>(c.kv_heads)) {
    const int n = static_cast<int>(block_index()) / plan.splits;
    split = static_cast<int>(block_index()) - n * plan.splits;
    b = n / kv_heads, kv_head = n - b * kv_heads;
    group = static_cast<int>(c.heads) / kv_heads;
    const Sequence& s = c.sequence(b);
    count = static_cast<int>(s.queries) * group;
    if (count == 0) return;
    const Seen seen = seen_by(c, b, 0, s.queries - 1);
    seen_begin = static_cast<int>(seen.begin), seen_end = static_cast<int>(seen.end);
  }

  HEED_DEVICE static int least_of(int x, int y) { return x < y ? x : y; }
  HEED_DEVICE static int most_of(int x, int y) { return x > y ? x : y; }

  // Rows are the queries in order, each for all heads that read the KV head.
  HEED_DEVICE int query_of(int r) const { return count == group ? 0 : r / group; }
  HEED_DEVICE Query query(int r) const {
    const int n = query_of(r), member = r - n * group;
    const int h = c.tiled_heads ? member * kv_heads + kv_head : kv_head * group + member;
    return {b, h, n, c.sequence(b).first_query + n};
  }

  const Call& c;
  const DecodePlan& plan;
  Shared& shared;
  const int kv_heads;
  int split, b, kv_head, group;
  int count;                         // rows that are real
  int seen_begin = 0, seen_end = 0;  // keys that some row sees
  bool is_apart = false;             // other blocks of threads do the rest of these keys
};

}  // namespace heed::cuda
