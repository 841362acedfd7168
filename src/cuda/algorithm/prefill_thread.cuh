// SPDX-License-Identifier: Apache-2.0
// What a thread of a warpgroup of consumers holds: its rows of the tile at hand, their scores, weights and
// sums.
#pragma once
#include <cstdint>

#include "cuda/algorithm/prefill_memory.cuh"
#include "cuda/algorithm/prefill_plan.hpp"
#include "cuda/algorithm/visible.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/wgmma.cuh"

namespace heed::cuda {

template <class Shape, bool capped>
class PrefillThread {
 protected:
  static constexpr int dim = Shape::dim, keys = Shape::keys;

  HEED_DEVICE PrefillThread(const Call& call, const PrefillPlan& launch, PrefillMemory<Shape> memory)
      : c(call), plan(launch), shared(memory), group(warpgroup_index() - 1), team{5 + group} {
    lane = thread_index() % 32;
    row_in_group = thread_index() % 128 / 32 * 16 + lane / 4;
    scale = capped ? 1.0f : c.scale_log2e;
  }

  HEED_DEVICE void release(SharedAddress barrier) const {
    if (team.thread() == 0) barrier_arrive(barrier);
  }

  // Query of the sequence.
  HEED_DEVICE int row(int r) const { return tile->first_query + group * 64 + row_in_group + 8 * r; }
  HEED_DEVICE Query query(int i) const {
    return {tile->b, tile->h, i, tile->first_row + i - tile->first_query};
  }
  HEED_DEVICE int rows_here() const { return tile->rows - group * 64; }

  const Call& c;
  const PrefillPlan& plan;
  const PrefillMemory<Shape> shared;
  const int group;
  const Warpgroup team;
  int lane, row_in_group;
  float scale;
  RowTile* tile = nullptr;  // in shared memory, until it is released
  float max[2], sum[2], factor[2];
  float o[dim / 2], s[keys / 2];
  std::uint32_t p[keys / 4];
};

}  // namespace heed::cuda
