// SPDX-License-Identifier: Apache-2.0
// Decode's states {max, sum, out} of all rows of a KV head: over the threads of a block, and in memory
// between blocks of threads, as (max of every row, sum of every row, out (rows, dims)).
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/exact_plan.hpp"
#include "cuda/algorithm/exact_state.cuh"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

// Which elements of a state are this thread's: row(k) and dim(k) of the outputs for k < Shape::mine, and max
// and sum of one row, or of none.
template <class Shape>
struct PlaceInState {
  HEED_DEVICE static int element(int k) { return thread_index() + decode_threads * k; }
  HEED_DEVICE static int row(int k) { return element(k) / Shape::dim; }
  HEED_DEVICE static int dim(int k) { return element(k) % Shape::dim; }
  HEED_DEVICE static int own_row() {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    return lane < 8 && warp < Shape::row_eights ? 8 * warp + lane : -1;
  }
};

template <class Shape>
struct DecodeState {
  float max = minus_infinity, sum = 0, out[Shape::mine];

  HEED_DEVICE void clear() {
    max = minus_infinity, sum = 0;
#pragma unroll
    for (int k = 0; k < Shape::mine; ++k) out[k] = 0;
  }
};

// What two states must be multiplied with when the maximum becomes the larger of theirs.
struct MergeFactors {
  float max, before, now;
  HEED_DEVICE MergeFactors(float a, float z) : max(fmaxf(a, z)) {
    before = fast_exp2(a - finite_max(max)), now = fast_exp2(z - finite_max(max));
  }
};

// The states of one KV head in memory; rows from `rows` on are not kept.
struct KeptStates {
  float* first;
  std::int64_t floats;
  int rows;
  HEED_DEVICE float* at(int n) const { return first + n * floats; }
};

// States being merged, with the {max} of the rows that a thread has elements of, so that no thread waits for
// another.
template <class Shape>
struct FoldedStates {
  using Place = PlaceInState<Shape>;
  static constexpr int mine = Shape::mine;
  static constexpr int together = mine <= 4   ? 8
                                  : mine <= 8 ? 4
                                              : 2;  // states whose loads are under way at once
  float max[mine], out[mine];
  RowEnd own;  // of Place::own_row()

  HEED_DEVICE void clear() {
    own = {minus_infinity, 0};
#pragma unroll
    for (int k = 0; k < mine; ++k) max[k] = minus_infinity, out[k] = 0;
  }

  // States [n, n + together), as far as there are any before `end`.
  HEED_DEVICE void add(const KeptStates& kept, int n, int end) {
    float their_max[together][mine], their_out[together][mine];
    RowEnd their_own[together];
    const int r = Place::own_row();
#pragma unroll
    for (int i = 0; i < together; ++i) {
      if (n + i >= end) continue;
      const float* state = kept.at(n + i);
      if (r >= 0) their_own[i] = {written_elsewhere(state + r), written_elsewhere(state + Shape::rows + r)};
#pragma unroll
      for (int k = 0; k < mine; ++k)
        if (Place::row(k) < kept.rows) {
          their_max[i][k] = written_elsewhere(state + Place::row(k));
          their_out[i][k] = written_elsewhere(state + 2 * Shape::rows + Place::element(k));
        }
    }
#pragma unroll
    for (int i = 0; i < together; ++i) {
      if (n + i >= end) continue;
      if (r >= 0) merge_own(their_own[i]);
#pragma unroll
      for (int k = 0; k < mine; ++k)
        if (Place::row(k) < kept.rows) merge_mine(k, their_max[i][k], their_out[i][k]);
    }
  }

  HEED_DEVICE void add(const FoldedStates& part) {
    merge_own(part.own);
#pragma unroll
    for (int k = 0; k < mine; ++k) merge_mine(k, part.max[k], part.out[k]);
  }

  HEED_DEVICE void store(DecodeState<Shape>& to) const {
    to.max = own.max, to.sum = own.sum;
#pragma unroll
    for (int k = 0; k < mine; ++k) to.out[k] = out[k];
  }

 private:
  HEED_DEVICE void merge_own(const RowEnd& part) {
    const MergeFactors of(own.max, part.max);
    own = {of.max, fmaf(own.sum, of.before, part.sum * of.now)};
  }
  HEED_DEVICE void merge_mine(int k, float part_max, float part_out) {
    const MergeFactors of(max[k], part_max);
    out[k] = fmaf(out[k], of.before, part_out * of.now);
    max[k] = of.max;
  }
};

}  // namespace heed::cuda
