// SPDX-License-Identifier: Apache-2.0
// The running softmax {max, sum, out} of the exact kernels. Every step is the CPU's (softmax/state.hpp).
#pragma once
#include "cuda/call.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// What a difference of scores is as a factor.
HEED_DEVICE Exponential power_of(const Call& c) { return {c.scaling.exponent, c.min_exponent}; }
// What sums so far must be multiplied with when the maximum moves.
HEED_DEVICE float rescaling(float before, float now, const Exponential& power) {
  return before > minus_infinity && before < now ? power(before - finite_max(now)) : 1.0f;
}

// Where a row ends, for the pass that writes its weights.
struct SavedEnd {
  RowEnd row;
  DoubleEnd in_double;  // where the sum is NaN
};

// Of the general kernel's rows, as a thread holds it.
template <int slabs>
struct ExactState {
  float max[8];            // of the eight rows whose outputs are this thread's
  float own_max, own_sum;  // of the one row whose sum is this thread's
  float o[slabs][4][8];    // [dim][row]

  HEED_DEVICE void clear() {
    own_max = minus_infinity, own_sum = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      max[n] = minus_infinity;
#pragma unroll
      for (int v = 0; v < slabs; ++v)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[v][e][n] = 0;
    }
  }

  HEED_DEVICE void scale(const float (&factor)[8]) {
#pragma unroll
    for (int v = 0; v < slabs; ++v)
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int n = 0; n < 8; ++n) o[v][e][n] = o[v][e][n] * factor[n];
  }

  HEED_DEVICE void add(const float (&values)[slabs][4][8]) {
#pragma unroll
    for (int v = 0; v < slabs; ++v)
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int n = 0; n < 8; ++n) o[v][e][n] = o[v][e][n] + values[v][e][n];
  }

  // This = `total`, the keys before, merged with this.
  HEED_DEVICE void merge(const ExactState& total, const Exponential& power) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float now = fmaxf(total.max[n], max[n]), subtract = finite_max(now);
      const float a = power(total.max[n] - subtract), b = power(max[n] - subtract);
      max[n] = now;
#pragma unroll
      for (int v = 0; v < slabs; ++v)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[v][e][n] = fmaf(o[v][e][n], b, total.o[v][e][n] * a);
    }
    const float now = fmaxf(total.own_max, own_max), subtract = finite_max(now);
    const float a = power(total.own_max - subtract), b = power(own_max - subtract);
    own_max = now;
    own_sum = fmaf(own_sum, b, total.own_sum * a);
  }
};

// The chunks so far; touched once in 1024 keys.
template <int slabs>
struct ExactTotal {
  bool is_empty = true;
  ExactState<slabs> state{};

  HEED_DEVICE void set(const ExactState<slabs>& part) { is_empty = false, state = part; }
};

}  // namespace heed::cuda
