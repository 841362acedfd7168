// SPDX-License-Identifier: Apache-2.0
// The weights of a row when they were asked for. What they are is known once all keys are in: until then
// floats that lie side by side hold the scores, in the caller's own memory, and nothing is computed twice.
#pragma once
#include <cstdint>

#include "cpu/tile/dropout.hpp"
#include "cpu/tile/exp2.hpp"
#include "cpu/tile/finish.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"
#include "cpu/tile/transposed_sums.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

inline bool keeps_scores(const Call& c) {
  return c.weights.data && c.weights.type == Type::f32 && c.weights.stride.dim == 1;
}

// Where they lie.
inline float* kept_scores(const Call& c, const Query& q) {
  const Row row = row_of(c.weights, q);
  return static_cast<float*>(const_cast<void*>(row.data)) + row.first;
}

template <Vector S>
class RowWeights {
  using F = typename S::F;

 public:
  RowWeights(const Call& call, const Query& query, const RowEnd& end, const Exponential<S>& exponential)
      : c(call),
        q(query),
        power(exponential),
        max(S::fill(end.max)),
        factor(S::fill(closed<S>(c, q, end).out())) {}

  // Scores of keys from `first_key` on become the weights that were applied.
  void make(float* s, std::int64_t first_key, std::int64_t keys) const {
    constexpr int together = 4;
    std::int64_t j = 0;
    for (; j + together * S::lanes <= keys; j += together * S::lanes) weigh_some<together>(s + j);
    for (; j + S::lanes <= keys; j += S::lanes) weigh_some<1>(s + j);
    if (j < keys) {
      float rest[S::lanes] = {};
      for (std::int64_t n = j; n < keys; ++n) rest[n - j] = s[n];
      weigh_some<1>(rest);
      for (std::int64_t n = j; n < keys; ++n) s[n] = rest[n - j];
    }
    if (c.drop_below) apply_dropout(c, q, 0, {s, 1, first_key, keys});
  }

  // The same in place of kept scores, of which there are so many; other keys were not seen.
  void finish(std::int64_t kept) const {
    float* const s = kept_scores(c, q);
    make(s, 0, kept);
    fill(s + kept, c.sequences[q.b].keys - kept, 0.0f);
  }

 private:
  template <int n>
  void weigh_some(float* s) const {
    F score[n], x[n];
    for (int i = 0; i < n; ++i) x[i] = S::sub(score[i] = S::load(s + i * S::lanes), max);
    exp2<S>(x, power);
    // What is not seen is 0 whatever the factor is.
    for (int i = 0; i < n; ++i)
      S::store(s + i * S::lanes,
               S::less(score[i], S::fill(-max_finite), S::fill(0.0f), S::mul(x[i], factor)));
  }

  const Call& c;
  const Query q;
  const Exponential<S>& power;
  const F max, factor;
};

// Those of a panel's rows, whose scores come as (keys, rows).
template <Vector S>
struct PanelWeights {
  const Call& c;
  const Queries queries;
  const State state;  // of the panel, once all keys are in
  const Exponential<S>& power;
  float* transposed;  // (rows, keys)

  // Keeps a stretch. Keys between it and what was kept before are hidden.
  void keep(const Scores& t, std::int64_t& kept) const {
    transpose_sums<S>(t.s, t.keys, static_cast<int>(queries.count), transposed);
    const std::int64_t keys = keys_of(t);
    for (std::int64_t r = 0; r < queries.count; ++r) {
      float* const to = kept_scores(c, queries(r));
      fill(to + kept, t.first_key - kept, minus_infinity);
      __builtin_memcpy(to + t.first_key, transposed + r * t.keys,
                       static_cast<std::size_t>(keys) * sizeof(float));
    }
    kept = t.first_key + keys;
  }

  void finish(std::int64_t kept) const {
    for (std::int64_t r = 0; r < queries.count; ++r) row(r).finish(kept);
  }

  // Writes a stretch of those that are not kept.
  void write_stretch(const Scores& t) const {
    transpose_sums<S>(t.s, t.keys, static_cast<int>(queries.count), transposed);
    for (std::int64_t r = 0; r < queries.count; ++r) {
      float* const w = transposed + r * t.keys;
      row(r).make(w, t.first_key, keys_of(t));
      const Row to = row_of(c.weights, queries(r));
      for (std::int64_t j = 0; j < keys_of(t); ++j) write(to, t.first_key + j, w[j]);
    }
  }

 private:
  std::int64_t keys_of(const Scores& t) const {
    return min(t.keys, c.sequences[queries.b].keys - t.first_key);
  }
  RowWeights<S> row(std::int64_t r) const { return {c, queries(r), {state.max[r], state.sum[r]}, power}; }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
