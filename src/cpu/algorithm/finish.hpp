// SPDX-License-Identifier: Apache-2.0
// The end of a row: sink, log-sum-exp, and the factor that turns the accumulated sum into the output; the
// weights and scores of a row when they were asked for.
#pragma once
#include <cstdint>

#include "cpu/algorithm/dropout.hpp"
#include "cpu/algorithm/exp2.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/score.hpp"
#include "cpu/call.hpp"

namespace heed::cpu {

constexpr float ln_2 = 0.693147180559945309417f;

// What a row's scores are measured against once all its keys are in.
struct RowEnd {
  float max, sum;
};

template <class S>
inline float one_exp2(float x) {
  float lanes[S::lanes];
  S::store(lanes, exp2<S>(S::fill(x)));
  return lanes[0];
}

// The largest score has weight 1, so only a row without keys sums to 0; a NaN among the scores may hide from
// the maximum, but not from the sum.
template <class S>
inline bool sees_no_key(const RowEnd& end) {
  return end.sum == 0;
}

// Brings the sink into {max, sum} (S5); returns what the accumulated values must be multiplied with because
// of it.
template <class S>
inline float add_sink(const Call& c, const Query& q, RowEnd& end) {
  if (!c.sink.data || sees_no_key<S>(end)) return 1.0f;
  const float sink = read<S>(row_of<S>(c.sink, q.b, q.h, 0), 0) * log2_e;
  if (sink == minus_infinity) return 1.0f;
  const float max = sink > end.max ? sink : end.max;
  const float factor = one_exp2<S>(end.max - max);
  end.sum = __builtin_fmaf(end.sum, factor, one_exp2<S>(sink - max));
  end.max = max;
  return factor;
}

template <class S>
inline double log_sum_exp(const Call& c, const Query& q, const RowEnd& end, bool empty) {
  if (empty)
    return c.sink.data ? static_cast<double>(read<S>(row_of<S>(c.sink, q.b, q.h, 0), 0)) : -__builtin_inf();
  if (end.max == -most_finite) return static_cast<double>(end.max);  // where add_bias() clamps it
  return static_cast<double>(end.max) * 0.693147180559945309417 + __builtin_log(static_cast<double>(end.sum));
}

// Writes the log-sum-exp and returns the factor of the output: 0 for a row that saw no key (S6).
template <class S>
inline float close_row(const Call& c, const Query& q, float max, float sum) {
  RowEnd end{max, sum};
  const bool empty = sees_no_key<S>(end);
  const float factor = add_sink<S>(c, q, end);
  if (c.log_sum_exp.data)
    write<S>(row_of<S>(c.log_sum_exp, q), 0, static_cast<float>(log_sum_exp<S>(c, q, end, empty)));
  return empty ? 0.0f : factor / end.sum;
}

// Writes out = sums * factor. Adding +0 gives every zero one sign: which products with a weight of 0 took
// part must not show.
template <class S>
inline void write_out(const Row& out, const float* sums, std::int64_t dims, float factor) {
  std::int64_t d = 0;
  if (out.type == Type::f32 && out.step == 1) {
    auto* to = static_cast<float*>(const_cast<void*>(out.data)) + out.first;
    for (; d + S::lanes <= dims; d += S::lanes)
      S::store(to + d, S::add(S::mul(S::load(sums + d), S::fill(factor)), S::fill(0.0f)));
  }
  for (; d < dims; ++d) write<S>(out, d, sums[d] * factor + 0.0f);
}

// Turns row r of the scores into the weights that were applied and writes them.
template <class S>
inline void write_weights(const Call& c, const Query& q, RowEnd end, int r, const Scores& t) {
  const bool empty = sees_no_key<S>(end);
  add_sink<S>(c, q, end);
  const float subtract = empty ? 0.0f : end.max, factor = empty ? 0.0f : 1.0f / end.sum;
  for (std::int64_t j = 0; j < t.keys; ++j) {
    float& s = t.s[j * t.width + r];
    s = s == minus_infinity ? 0.0f : one_exp2<S>(s - subtract) * factor;
  }
  if (c.drop_below) apply_dropout<S>(c, q, r, t);
  const Row weights = row_of<S>(c.weights, q);
  for (std::int64_t j = 0; j < t.keys && t.first_key + j < c.sequences[q.b].keys; ++j)
    write<S>(weights, t.first_key + j, t.s[j * t.width + r]);
}

// The columns of weights and scores that a sequence shorter than the longest does not fill.
template <class S>
inline void write_beyond(const Call& c, const Query& q) {
  for (std::int64_t j = c.sequences[q.b].keys; j < c.keys; ++j) {
    if (c.weights.data) write<S>(row_of<S>(c.weights, q), j, 0.0f);
    if (c.scores.data)
      write<S>(row_of<S>(c.scores, q), j, c.stage == ScoreStage::biased ? minus_infinity : 0.0f);
  }
}

// Scores are kept in base 2; the caller's are natural.
template <class S>
inline void write_score_row(const Call& c, const Query& q, int r, const Scores& t) {
  const Row scores = row_of<S>(c.scores, q);
  for (std::int64_t j = 0; j < t.keys && t.first_key + j < c.sequences[q.b].keys; ++j)
    write<S>(scores, t.first_key + j, t.s[j * t.width + r] * ln_2);
}

}  // namespace heed::cpu
