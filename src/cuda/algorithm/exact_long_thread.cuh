// SPDX-License-Identifier: Apache-2.0
// The exact kernel for long plain problems: what its threads share, and where they meet. 128 threads score
// the keys, 128 add up the values of the block of keys before, and all exponentiate: each scheduler has a
// warp of both teams.
//
// A thread has 8 rows and 16 keys of a half block of keys, or 8 rows and 8 dimensions. Its loops hold as few
// instructions as hide the loads: the cache of instructions must have both. No register may be spilled, or
// the compiler no longer spreads the sums over the banks of registers.
#pragma once
#include <cstdint>

#include "cuda/algorithm/exact_state.cuh"
#include "cuda/algorithm/exact_work.cuh"
#include "cuda/algorithm/visible.cuh"
#include "cuda/call.hpp"

namespace heed::cuda {

constexpr int long_scorers = 128, long_adders = 128, long_threads = long_scorers + long_adders;
constexpr int long_keys = 128;       // half a block of keys, scored at once
constexpr int long_depth = 32;       // dimensions of keys that are in shared memory together
constexpr int long_value_keys = 32;  // keys whose values are
constexpr int long_dims = 64;        // the most that keys and values have

struct ExactLongShared {
  alignas(16) float q[long_dims][long_rows];
  // (dims, keys): a dimension's begin four banks after the last one's, so that eight dimensions of four keys
  // are written without conflicts.
  alignas(16) float keys[2][long_depth][long_keys + 4];
  alignas(16) float values[2][long_value_keys][long_dims];
  alignas(16) float p[2 * long_keys][long_rows];  // the scores of a block of keys, and then its weights
  alignas(16) float warp_max[long_scorers / 64][long_rows];
  alignas(16) float top[long_rows];  // what is subtracted from a row's scores
  // What a row's values are multiplied with: those before this block, the chunks before this chunk, and this
  // chunk.
  alignas(16) float factor[long_rows], of_total[long_rows], of_part[long_rows];
  int begin[long_rows], end[long_rows];
  ExactWork work;
};

// Barriers. A half of p is free when its weights have been added.
enum class LongBarrier : int {
  scorers = 1,
  adders,
  scores_there,
  weights_there,
  first_half_free,
  second_half_free
};

HEED_DEVICE void meet_at(LongBarrier b, int threads) { meet(static_cast<int>(b), threads); }
HEED_DEVICE void tell(LongBarrier b) { let_go(static_cast<int>(b), long_threads); }
HEED_DEVICE void wait_for(LongBarrier b) { meet(static_cast<int>(b), long_threads); }

class ExactLongThread {
 protected:
  HEED_DEVICE ExactLongThread(const Call& call, const ExactPlan& launch, ExactLongShared& memory)
      : c(call), plan(launch), work(memory.work), shared(memory), thread(thread_index() % long_scorers) {
    const int lane = thread % 32, warp = thread / 32;
    row_group = lane % 8 + warp % 2 * 8;
    column = lane / 8 + warp / 2 * 4;
  }

  // Row n of this thread's eight.
  HEED_DEVICE int row(int n) const { return row_group * 4 + (n < 4 ? n : 60 + n); }
  HEED_DEVICE void load_rows(float (&x)[8], const float* from) const {
    load4(x, from + row_group * 4), load4(x + 4, from + row_group * 4 + 64);
  }

  // Adds the products of eight rows with as many columns to their sums. Of the three numbers that a
  // multiply-add reads, the one that the one before has read, too, need not come from its bank of registers
  // again: so neighbours share a column, and at its end a row.
  template <int columns>
  HEED_DEVICE static void add_products(float (&sums)[columns][8], const float (&x)[8],
                                       const float (&y)[columns]) {
#pragma unroll
    for (int m = 0; m < columns; ++m)
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int n = m % 2 == 0 ? step : 7 - step;
        sums[m][n] = fmaf(x[n], y[m], sums[m][n]);
      }
  }

  // Halves of the block that some row sees.
  struct Halves {
    bool first, second;
  };
  HEED_DEVICE Halves halves_of(std::int64_t block) const {
    const KeyRange part = work.part_of(block);
    return {part.begin<block + long_keys, part.end> block + long_keys};
  }

  // Scores become weights, when their maximum is known: the work of both teams, a warp for every eighth key.
  HEED_DEVICE void weigh(Halves halves) const {
    wait_for(LongBarrier::scores_there);
    const int row = thread_index() % 32 * 4;
    float top[4];
    load4(top, shared.top + row);
    const int begin = halves.first ? 0 : long_keys, end = halves.second ? 2 * long_keys : long_keys;
#pragma unroll 2
    for (int key = begin + thread_index() / 32; key < end; key += long_threads / 32) {
      float x[4];
      load4(x, shared.p[key] + row);
#pragma unroll
      for (int n = 0; n < 4; ++n) x[n] = power_of(c)(x[n] - top[n]);
      store4(shared.p[key] + row, x);
    }
    wait_for(LongBarrier::weights_there);
  }

  // Something that f32 could not finish: the general kernel does these rows again.
  HEED_DEVICE void leave() const { *work.left(c, plan) = 1; }

  const Call& c;
  const ExactPlan& plan;
  const ExactWork& work;
  ExactLongShared& shared;
  const int thread;  // of its team
  int row_group, column;
};

}  // namespace heed::cuda
