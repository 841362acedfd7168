// SPDX-License-Identifier: Apache-2.0
// What a thread of the exact kernel knows: the call, what its block of threads is to do, the memory they
// share, and its own place in it. A thread has 8 rows, 8 keys of each tile, and 4 dimensions of each slab
// of 64.
#pragma once
#include "cuda/algorithm/exact_loads.cuh"
#include "cuda/algorithm/exact_state.cuh"
#include "cuda/call.hpp"

namespace heed::cuda {

template <int slabs, bool in_place>
class ExactThread : protected ExactState<slabs> {
 public:
  using Loads = ExactLoads<slabs, in_place>;
  static constexpr int threads = exact_threads, rows = exact_rows, dims = 64 * slabs;

  struct Shared {
    typename Loads::Shared loads;
    alignas(16) float p[exact_tile][rows];  // the weights of one tile of keys
    alignas(16) float warp_max[4][rows];
    ExactWork work;
    int begin[rows], end[rows];  // keys that ranges let each row see; none where there is no row
    float factor[rows];
    int left[rows];
    unsigned arrived;
  };

 protected:
  HEED_DEVICE ExactThread(const Call& call, const ExactPlan& launch, Shared& memory)
      : c(call), plan(launch), work(memory.work), shared(memory), loads(call, memory.work, memory.loads) {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    row_group = lane % 8;
    column = warp * 4 + lane / 8;
    own_row = lane < 16 ? warp * 16 + lane : -1;
  }

  // Row n of this thread's eight, and key m of its eight in a tile.
  HEED_DEVICE int row(int n) const { return n < 4 ? row_group * 4 + n : 28 + row_group * 4 + n; }
  HEED_DEVICE int key(int m) const { return column + 16 * m; }

  const Call& c;
  const ExactPlan& plan;
  const ExactWork& work;
  Shared& shared;
  Loads loads;
  int row_group, column;
  int own_row;  // whose sum is this thread's; -1: of none
};

}  // namespace heed::cuda
