// SPDX-License-Identifier: Apache-2.0
// A team of decode's warps, which shares the tiles of keys that it loads.
#pragma once
#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/call.hpp"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

template <class Shape>
struct DecodeTeam {
  static constexpr int threads = 32 * Shape::team_warps;

  HEED_DEVICE static int number() { return thread_index() / threads; }
  HEED_DEVICE static int thread() { return thread_index() % threads; }  // of the team
  HEED_DEVICE static void sync() {
    if constexpr (Shape::team_warps == 1)
      sync_warp();
    else
      meet(1 + number(), threads);
  }
};

// A KV head of a sequence.
struct DecodeHead {
  const Call* c;
  int b, kv_head;
  int begin, end;          // keys that some row sees
  std::int64_t first_key;  // the sequence's, among the rows of a packed call

  HEED_DEVICE bool is_wanted(int j) const { return j >= begin && j < end; }
};
struct KeyStretch {
  int begin, end;
};

}  // namespace heed::cuda
