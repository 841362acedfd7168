// SPDX-License-Identifier: Apache-2.0
// The end of a row, read from top to bottom: its sums are closed with the sink, give log-sum-exp and the
// factor of the output, and are written; then scores and weights, if the caller wants them.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/mask.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// What a row's scores are measured against once all its keys are in.
struct RowEnd {
  float max, sum;
};

// 2^(scale * x)
template <Vector S>
inline float one_exp2(float x, float scale = 1) {
  float lanes[S::lanes];
  S::store(lanes, Exponential<S>(scale)(S::fill(x)));
  return lanes[0];
}

// The largest score has weight 1, so only a row without keys sums to 0; a NaN among the scores may hide from
// the maximum, but not from the sum.
inline bool sees_no_key(const RowEnd& end) { return end.sum == 0; }

inline float sink_of(const Call& c, const Query& q) {
  return c.sink.data ? read(row_of(c.sink, q.b, q.h, 0), 0) : minus_infinity;
}

// Brings the sink into {max, sum} of base 2 (S5); returns what the accumulated values must be multiplied with
// because of it. One beyond the range of base 2 makes the sum NaN, unless it is far below every score and so
// nothing.
template <Vector S>
inline float add_sink(const Call& c, const Query& q, RowEnd& end) {
  if (!c.sink.data) return 1.0f;
  const float natural = sink_of(c, q), sink = natural * log2_e;
  if (natural == minus_infinity || sees_no_key(end)) return 1.0f;
  if (sink == minus_infinity && end.max > -0x1p126f) return 1.0f;
  const float max = sink > end.max ? sink : end.max;
  const float factor = one_exp2<S>(end.max - max);
  end.sum = __builtin_fmaf(end.sum, factor, one_exp2<S>(sink - max));  // fault: sink-missing
  end.max = max;
  return factor;
}

// Where every score of a row is the lowest number that its unit holds, scores that differ may have become
// equal: then the sum is made NaN, so that the row is repaired. They are equal in truth where somebody masks
// with the lowest number of f32, or half of it, and leaves no key (docs/numerics.md has the proof). Returns
// what was added to each of them, which is what such scores are in natural units.
[[gnu::noinline]] inline double check_lowest(const Call& c, const Query& q, RowEnd& end) {
  const Row bias = row_of(c.bias, q);
  constexpr double none = -__builtin_inf();
  double shared = none;
  bool are_equal = sink_of(c, q) == minus_infinity && !(c.bias.data && c.alibi.of_heads);
  for (std::int64_t j = 0; are_equal && j < c.sequences[q.b].keys; ++j) {
    if (!sees(c, q, j)) continue;
    const double x = static_cast<double>(c.bias.data ? read(bias, j) : alibi_at(c, q, j));
    are_equal = x < -0x1p126 && (shared == none || x == shared);  // fault: lowest-biases-tie
    shared = x;
  }
  if (!are_equal) end.sum = __builtin_nanf("");
  return shared;
}

// A row when all its keys and the sink are in. Weights against the row's maximum and the values accumulated
// under them are to be multiplied with out(): 0 for a row that saw no key (S6), and NaN for one that needs
// repair.
struct ClosedRow {
  float sum, rescale;
  double highest;  // the maximum, or the sink, in natural units

  float out() const { return rescale / sum; }
  double log_sum_exp() const { return highest + __builtin_log(static_cast<double>(sum)); }
};

template <Vector S>
inline ClosedRow closed(const Call& c, const Query& q, RowEnd end) {
  if (sees_no_key(end)) return {1.0f, 0.0f, static_cast<double>(sink_of(c, q))};
  // A sink above that outweighs them all.
  const bool is_lowest = (c.bias.data || c.alibi.of_heads) && end.max == -max_finite &&
                         !(sink_of(c, q) * c.scaling.unit > -0x1p126f);
  const double lowest = is_lowest ? check_lowest(c, q, end) : 0.0;
  const double of_scores = static_cast<double>(end.max) * c.scaling.natural;
  const float before = end.max = c.scaling.in_base_2(end.max), rescale = add_sink<S>(c, q, end);
  if (!is_finite(end.sum)) ask_for_repair(c);
  const double highest = end.max == before ? of_scores : static_cast<double>(end.max) * softmax::ln_2;
  return {end.sum, rescale, is_lowest ? lowest : highest};
}

// Whether rows need no more than their sums to be closed: nothing but their scores is asked of them.
inline bool needs_only_sums(const Call& c) {
  return !c.sink.data && !c.bias.data && !c.alibi.of_heads && !c.log_sum_exp.data;
}

// Then the factors of their outputs are these, of whole vectors of rows.
template <Vector S>
inline void reciprocals(const float* sums, std::int64_t rows, float* factors) {
  const auto zero = S::fill(0.0f), one = S::fill(1.0f);
  for (std::int64_t r = 0; r < rows; r += S::lanes) {
    const auto sum = S::load(sums + r), divisor = S::less(zero, sum, sum, one);  // nobody divides by 0
    S::store(factors + r, S::less(zero, sum, S::div(one, divisor), sum));
  }
}

// Writes the log-sum-exp and returns the factor of the output.
template <Vector S>
inline float close_row(const Call& c, const Query& q, const RowEnd& end) {
  if (needs_only_sums(c)) return sees_no_key(end) ? 0.0f : 1.0f / end.sum;
  const ClosedRow row = closed<S>(c, q, end);
  if (c.log_sum_exp.data) write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
  return row.out();
}

// Writes the rows of out, and remembers whether any of them has a NaN or an infinity.
template <Vector S>
class WriteOut {
  using F = typename S::F;

 public:
  // out = sums * factor. Adding +0 gives every zero one sign: which products with a weight of 0 took part
  // must not show.
  void operator()(const Row& out, const float* sums, std::int64_t dims, float factor) {
    const F zero = S::fill(0.0f), times = S::fill(factor);
    F poison[4] = {zero, zero, zero, zero};  // each waits for itself alone; no store may change them
    std::int64_t d = 0;
    if (out.type == Type::f32 && out.step == 1) {
      auto* to = static_cast<float*>(const_cast<void*>(out.data)) + out.first;
      const auto step = [=](std::int64_t at, F so_far) {
        const F x = S::add(S::mul(S::load(sums + at), times), zero);
        S::store(to + at, x);
        return S::fma(x, zero, so_far);  // 0 * x is 0 for every finite x, and NaN for the others
      };
      for (; d + 4 * S::lanes <= dims; d += 4 * S::lanes)
        for (int v = 0; v < 4; ++v) poison[v] = step(d + v * S::lanes, poison[v]);
      for (; d + S::lanes <= dims; d += S::lanes) poison[0] = step(d, poison[0]);
    }
    poison_ = S::add(poison_, S::add(S::add(poison[0], poison[1]), S::add(poison[2], poison[3])));
    if (d < dims) write_rest(out, sums, d, dims, factor);
  }

  bool wrote_only_numbers() const { return !has_poison_ && sum_of_lanes<S>(poison_) == 0; }

 private:
  // These are looked at before they are written: to add up their poison on the way takes bf16 on AMX 12 %
  // longer. Compiled once, not at every call.
  [[gnu::noinline]] void write_rest(const Row& out, const float* sums, std::int64_t d, std::int64_t dims,
                                    float factor) {
    has_poison_ |= !is_finite(factor) || !all_finite<S>(sums + d, dims - d);
    if (out.step == 1 && out.type == Type::bf16) return write_halves<bf16>(out, sums, dims, factor);
    if (out.step == 1 && out.type == Type::f16) return write_halves<f16>(out, sums, dims, factor);
    for (; d < dims; ++d) write(out, d, sums[d] * factor + 0.0f);
  }

  // Side by side, so that compilers make vectors of it: one by one they took a fifth of a call of 128 rows
  // and keys, and a tenth of one of 512 (bf16, a Xeon's 16 threads, November 2026).
  template <class Half>
  static void write_halves(const Row& out, const float* sums, std::int64_t dims, float factor) {
    auto* to = static_cast<std::uint16_t*>(const_cast<void*>(out.data)) + out.first;
    for (std::int64_t d = 0; d < dims; ++d) to[d] = from_float<Half>(sums[d] * factor + 0.0f).bits;
  }

  F poison_ = S::fill(0.0f);
  bool has_poison_ = false;
};

// The sums of a panel lie (dims, rows), and its outputs (rows, dims): transposed as they are, or, where an
// instruction set rounds two vectors to pairs of bf16, after rounding, when they are half as many. A panel of
// 32 rows by 64 dimensions is finished in half the time this way, which is 4 % of 12 heads of 1024 x 64 on a
// Xeon's 16 threads, and 5 % of 128 x 64 (November 2026).
//
// The first `count` rows of a panel become (rows, dims).
template <Vector S>
inline void transpose_sums(const float* sums, std::int64_t dims, int count, float* transposed) {
  constexpr std::int64_t rows = Tile<S>::rows;
  std::int64_t d = 0;
  if constexpr (transposes_sixteen<S>)
    for (; d + 16 <= dims; d += 16)
      for (int r = 0; r < count; r += 16) {
        typename S::F x[16];
        for (int n = 0; n < 16; ++n) x[n] = S::load(sums + (d + n) * rows + r);
        S::transpose_sixteen(x, transposed + r * dims + d, dims);
      }
  for (; d < dims; d += 4)
    for (int r = 0; r < count; r += 4) {
      const float* corner = sums + d * rows + r;
      const float* const four[4] = {corner, corner + rows, corner + 2 * rows, corner + 3 * rows};
      S::transpose(four, transposed + r * dims + d, dims);
    }
}

template <class S>
concept RoundsPairs = Vector<S> && requires(typename S::F x, std::uint16_t* to, std::int64_t n) {
  S::store_halves(to, S::bf16_pairs(x, x), n);
};

// Writes the rows of a panel in bf16; add() says where each goes and what its sums are multiplied with.
template <RoundsPairs S>
class RoundedRows {
  using F = typename S::F;
  static constexpr std::int64_t rows = Tile<S>::rows;

 public:
  // The sums have `dims`, a multiple of sixteen, and the outputs value_dim.
  RoundedRows(std::int64_t dims, std::int64_t value_dim) : dims_(dims), value_dim_(value_dim) {}

  void add(std::uint16_t* to, float factor) {
    to_[count_] = to;
    factor_[count_++] = factor;
  }

  // Returns whether all that was written is finite: a NaN may not have been rounded to one.
  bool write(const float* sums) const {
    bool are_numbers = true;
    for (int r = 0; r < count_; r += 16) are_numbers &= write_sixteen(sums + r, r);
    return are_numbers;
  }

 private:
  bool write_sixteen(const float* sums, int first) const {
    const std::int64_t count = min(16, count_ - first);
    const F zero = S::fill(0.0f), factor = S::load(factor_ + first);
    F poison[2] = {zero, zero};
    for (std::int64_t d = 0; d < value_dim_; d += 32) {
      typename S::Dwords pairs[16];
      for (int n = 0; n < 16; ++n) {
        F x[2] = {zero, zero};
        for (int i = 0; i < 2 && d + 2 * n < dims_; ++i) {
          x[i] = S::add(S::mul(S::load(sums + (d + 2 * n + i) * rows), factor), zero);  // one sign for zeros
          poison[i] = S::fma(x[i], zero, poison[i]);  // 0 * x is 0 for every finite x, and NaN for the others
        }
        pairs[n] = S::bf16_pairs(x[0], x[1]);
      }
      S::transpose(pairs);
      for (std::int64_t n = 0; n < count; ++n) S::store_halves(to_[first + n] + d, pairs[n], value_dim_ - d);
    }
    float poisons[16];
    S::store(poisons, S::add(poison[0], poison[1]));
    bool are_numbers = true;
    for (std::int64_t n = 0; n < count; ++n) are_numbers &= poisons[n] == 0;
    return are_numbers;
  }

  const std::int64_t dims_, value_dim_;
  int count_ = 0;
  float factor_[rows] = {};  // 0 for rows that are none
  std::uint16_t* to_[rows];
};

// The columns of weights and scores that a sequence shorter than the longest does not fill.
[[gnu::noinline]] inline void write_beyond(const Call& c, const Query& q) {
  for (std::int64_t j = c.sequences[q.b].keys; j < c.keys; ++j) {
    if (c.weights.data) write(row_of(c.weights, q), j, 0.0f);
    if (c.scores.data) write(row_of(c.scores, q), j, c.stage == ScoreStage::biased ? minus_infinity : 0.0f);
  }
}

// Scores have a unit of their own; the caller's are natural. What f32 cannot hold needs repair.
[[gnu::noinline]] inline void write_score_row(const Call& c, const Query& q, int r, const Scores& t) {
  const Row scores = row_of(c.scores, q);
  const auto natural = static_cast<float>(c.stage == ScoreStage::raw ? c.scaling.product : c.scaling.natural);
  for (std::int64_t j = 0; j < t.keys && t.first_key + j < c.sequences[q.b].keys; ++j) {
    const float s = t.s[j * t.width + r];
    const bool is_hidden = s == minus_infinity && c.stage == ScoreStage::biased;
    const bool is_known = is_hidden || (is_finite(s) && s != -max_finite);
    if (!is_known) ask_for_repair(c);
    write(scores, t.first_key + j, is_known ? s * natural : __builtin_nanf(""));
  }
}

// The weights of a row, if the caller wants them. They are known once all keys are in. Until then the
// caller's own memory holds the scores, where it is f32 side by side, so that nothing is computed twice.

inline bool stores_scores(const Call& c) {
  return c.weights.data && c.weights.type == Type::f32 && c.weights.stride.dim == 1;
}

// The scores of a row.
inline float* stored_scores(const Call& c, const Query& q) {
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

  // The same in place of the first `stored` scores of the row; other keys were not seen.
  void finish(std::int64_t stored) const {
    float* const s = stored_scores(c, q);
    make(s, 0, stored);
    fill(s + stored, c.sequences[q.b].keys - stored, 0.0f);
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
  const SoftmaxState state;  // of the panel, once all keys are in
  const Exponential<S>& power;
  float* transposed;  // (rows, keys)

  // Stores a stretch behind the first `stored` scores. Keys between them are hidden.
  void store(const Scores& t, std::int64_t& stored) const {
    transpose_sums<S>(t.s, t.keys, static_cast<int>(queries.count), transposed);
    const std::int64_t keys = keys_of(t);
    for (std::int64_t r = 0; r < queries.count; ++r) {
      float* const to = stored_scores(c, queries(r));
      fill(to + stored, t.first_key - stored, minus_infinity);
      __builtin_memcpy(to + t.first_key, transposed + r * t.keys,
                       static_cast<std::size_t>(keys) * sizeof(float));
    }
    stored = t.first_key + keys;
  }

  void finish(std::int64_t stored) const {
    for (std::int64_t r = 0; r < queries.count; ++r) row(r).finish(stored);
  }

  // Writes the weights of a stretch whose scores are not stored.
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
