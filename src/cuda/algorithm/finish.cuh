// SPDX-License-Identifier: Apache-2.0
// The end of a row: sink, log-sum-exp, and the factor that turns the accumulated sum into the output, by the
// operations of src/cpu/tile/finish.hpp.
#pragma once
#include <cstdint>

#include "cuda/algorithm/exact_plan.hpp"
#include "cuda/algorithm/exp2.cuh"
#include "cuda/algorithm/visible.cuh"
#include "cuda/call.hpp"

namespace heed::cuda {

// The largest score has weight 1, so only a row without keys sums to 0.
HEED_DEVICE bool sees_no_key(const RowEnd& end) { return end.sum == 0; }

HEED_DEVICE float sink_of(const Call& c, const Query& q) {
  return c.sink.data ? read(row_of(c.sink, q.b, q.h, 0), 0) : minus_infinity;
}

// Brings the sink into {max, sum} of base 2 (S5); returns what the accumulated values must be multiplied with
// because of it. One beyond the range of base 2 makes the sum NaN, unless it is far below every score and so
// nothing.
HEED_DEVICE float add_sink(const Call& c, const Query& q, RowEnd& end) {
  if (!c.sink.data) return 1.0f;
  const float natural = sink_of(c, q), sink = natural * log2_e;
  if (natural == minus_infinity || sees_no_key(end)) return 1.0f;
  if (sink == minus_infinity && end.max > -0x1p126f) return 1.0f;
  const float max = sink > end.max ? sink : end.max;
  const float factor = exp2(end.max - max);
  end.sum = fmaf(end.sum, factor, exp2(sink - max));
  end.max = max;
  return factor;
}

// Where every score of a row is as low as base 2 goes, biases that differ may have become one: the sum is
// then NaN. They are one in truth where somebody masks with the lowest number there is. Returns that bias.
inline __device__ __noinline__ double open_lowest(const Call& c, const Query& q, RowEnd& end) {
  const Row bias = row_of(c.bias, q);
  constexpr double none = -__builtin_inf();
  double shared = none;
  for (std::int64_t j = 0; j < c.sequence(q.b).keys; ++j) {
    if (!sees(c, q, j)) continue;
    const double from_alibi = c.alibi.of_heads ? static_cast<double>(alibi_at(c, q, j)) : 0.0;
    const double x = c.bias.data ? static_cast<double>(read(bias, j)) + from_alibi : from_alibi;
    if (shared != none && x != shared) end.sum = __builtin_nanf("");
    if (!(x < -0x1p126)) end.sum = __builtin_nanf("");  // no mask: products may count beside it
    shared = x;
  }
  if (sink_of(c, q) != minus_infinity) end.sum = __builtin_nanf("");
  return shared;
}

// A row when all its keys and the sink are in. Weights against the row's maximum and the values accumulated
// under them are to be multiplied with out(): 0 for a row that saw no key (S6), and NaN for one that f32
// cannot hold.
struct ClosedRow {
  float sum, rescale;
  double highest;  // the maximum, or the sink, in natural units

  HEED_DEVICE float out() const { return rescale / sum; }
  HEED_DEVICE double log_sum_exp() const { return highest + log(static_cast<double>(sum)); }
};

// Of a row whose scores are in this unit, or else in base 2.
HEED_DEVICE ClosedRow closed(const Call& c, const Query& q, RowEnd end, const softmax::Scaling& unit = {}) {
  if (sees_no_key(end)) return {1.0f, 0.0f, static_cast<double>(sink_of(c, q))};
  // A sink that is no such number outweighs them all.
  const bool is_lowest =
      (c.bias.data || c.alibi.of_heads) && end.max == -max_finite && !(sink_of(c, q) * unit.unit > -0x1p126f);
  const double lowest = is_lowest ? open_lowest(c, q, end) : 0.0;
  const double of_scores = static_cast<double>(end.max) * unit.natural;
  const float before = end.max = unit.in_base_2(end.max), rescale = add_sink(c, q, end);
  const double highest = end.max == before ? of_scores : static_cast<double>(end.max) * softmax::ln_2;
  return {end.sum, rescale, is_lowest ? lowest : highest};
}

}  // namespace heed::cuda
