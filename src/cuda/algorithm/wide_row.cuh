// SPDX-License-Identifier: Apache-2.0
// A row in double precision, by a team of threads: what f32 cannot hold, or what NaN and infinities do (S13).
// The words are those of src/reference/row.cpp.
#pragma once
#include <cstdint>

#include "cuda/algorithm/dropout.cuh"
#include "cuda/algorithm/finish.cuh"
#include "cuda/algorithm/visible.cuh"
#include "cuda/call.hpp"

namespace heed::cuda {

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
  const double cap = static_cast<double>(c.softcap);
  s.softcapped = c.softcap != 0 ? cap * ::tanh(s.raw / cap) : s.raw;
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
