// SPDX-License-Identifier: Apache-2.0
// The end of a row: the sink, the log-sum-exp and the factor of its outputs, by the CPU's operations; then
// the same row in double precision, for what f32 cannot hold and for what NaN and infinities do (S13).
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/exp2.cuh"
#include "cuda/tile/visible.cuh"

namespace heed::cuda {

// What a row's scores are measured against once all its keys are in.
struct RowEnd {
  float max, sum;
};

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

// In double precision, by a team of threads, as src/reference/row.cpp does it: the largest score, sink
// included, and the sum against it.
struct WideEnd {
  double max, sum;
  bool saw_a_key;
};

struct WideScore {
  double raw, softcapped, biased;
};

// Keys of a quantised cache are what its read() gives: one product, rounded to f32.
inline __device__ __noinline__ WideScore wide_score(const Call& c, const Query& q, std::int64_t j) {
  const std::int64_t kv_head = c.kv_head(q.h);
  const Row query = row_of(c.q, q), key = key_row(c, q.b, kv_head, j);
  const float scale = c.layout.is_quantized ? key_scale(c, q.b, kv_head, j) : 1.0f;
  double dot = 0;
  for (std::int64_t d = 0; d < c.dim; ++d)
    dot += static_cast<double>(read(query, d)) * static_cast<double>(read(key, d) * scale);
  WideScore s{dot * c.scale, 0, minus_infinity};
  const double cap = static_cast<double>(c.cap);
  s.softcapped = c.cap != 0 ? cap * ::tanh(s.raw / cap) : s.raw;
  if (!sees(c, q, j)) return s;
  const double from_alibi = c.alibi.of_heads ? static_cast<double>(alibi_at(c, q, j)) : 0.0;
  s.biased =
      s.softcapped + from_alibi + (c.bias.data ? static_cast<double>(read(row_of(c.bias, q), j)) : 0.0);
  return s;
}

HEED_DEVICE double wide_weight(const Call& c, const Query& q, const WideEnd& end, std::int64_t j,
                               double biased) {
  if (biased == -__builtin_inf()) return 0;  // S6: where all are, none is more than another
  const double weight = ::exp(biased - end.max) / end.sum;
  if (c.drop_below == 0) return weight;
  return drops(c, q, j) ? 0.0 : weight / (1.0 - static_cast<double>(c.drop_probability));
}

// `scratch` is shared, one number for each thread of the team.
template <class Team>
__device__ __noinline__ WideEnd wide_end(Team team, const Call& c, const Query& q, double* scratch) {
  constexpr int threads = Team::threads;
  const int t = team.thread();
  const std::int64_t keys = c.sequence(q.b).keys;
  const double sink = static_cast<double>(sink_of(c, q));
  double max = sink;
  bool saw = false;
  for (std::int64_t j = t; j < keys; j += threads) {
    const double s = wide_score(c, q, j).biased;
    saw = saw || s != -__builtin_inf();
    if (s > max) max = s;
  }
  team.sync();
  scratch[t] = max;
  saw = team.any(saw);
  for (int n = 0; n < threads; ++n) max = scratch[n] > max ? scratch[n] : max;
  double sum = 0;
  for (std::int64_t j = t; j < keys; j += threads) sum += ::exp(wide_score(c, q, j).biased - max);
  team.sync();
  scratch[t] = sum;
  team.sync();
  sum = sink == -__builtin_inf() ? 0.0 : ::exp(sink - max);
  for (int n = 0; n < threads; ++n) sum += scratch[n];
  return {max, sum, saw};
}

// Dimension d of the row's output, each thread its own; one that has none takes part in the weights.
template <class Team>
__device__ __noinline__ double wide_out(Team team, const Call& c, const Query& q, const WideEnd& end,
                                        std::int64_t d, double* scratch) {
  constexpr double unseen = -1;
  constexpr int threads = Team::threads;
  const int t = team.thread();
  const std::int64_t keys = c.sequence(q.b).keys, kv_head = c.kv_head(q.h);
  double out = 0;
  for (std::int64_t first = 0; first < keys && end.saw_a_key; first += threads) {
    const double s = first + t < keys ? wide_score(c, q, first + t).biased : -__builtin_inf();
    team.sync();
    scratch[t] = s == -__builtin_inf() ? unseen : wide_weight(c, q, end, first + t, s);
    team.sync();
    for (std::int64_t n = 0; n < threads && d < c.value_dim; ++n) {
      if (scratch[n] == unseen) continue;
      const float scale = c.layout.is_quantized ? value_scale(c, q.b, kv_head, first + n) : 1.0f;
      out += scratch[n] * static_cast<double>(read(value_row(c, q.b, kv_head, first + n), d) * scale);
    }
  }
  team.sync();
  return out;
}

// Writes what the row's results in f32 left as NaN or an infinity: these dimensions of out and, with the
// first of them, the log-sum-exp. Returns the softmax.
template <class Team>
__device__ __noinline__ WideEnd complete_row(Team team, const Call& c, const Query& q, KeyRange dims,
                                             double* scratch) {
  const WideEnd end = wide_end(team, c, q, scratch);
  const int t = team.thread();
  const Row out = row_of(c.out, q);
  for (std::int64_t first = dims.begin; first < dims.end; first += Team::threads) {
    const std::int64_t d = first + t;
    const double x = wide_out(team, c, q, end, d, scratch);
    if (d < dims.end && !is_finite(read(out, d))) write(out, d, static_cast<float>(x));
  }
  if (t == 0 && dims.begin == 0 && c.log_sum_exp.data) {
    const Row lse = row_of(c.log_sum_exp, q);
    const float found = read(lse, 0);
    const double natural = end.saw_a_key ? end.max + ::log(end.sum) : static_cast<double>(sink_of(c, q));
    if (found != found) write(lse, 0, static_cast<float>(natural));
  }
  return end;
}

}  // namespace heed::cuda
