// SPDX-License-Identifier: Apache-2.0
// What lies between the products of the backward pass, for a panel of rows and some keys: scores S become
// weights P, and gradients dP by the weights become gradients dS by the scores. All are laid out as prefill's
// scores are, (keys, rows).
#pragma once
#include <cstdint>

#include "cpu/backward/blocks.hpp"
#include "cpu/tile/softmax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// The log-sum-exps of a panel's rows in base 2, and what floats do not hold of them.
struct LogSums {
  const float *of, *rest;
};

// A panel of rows, with what each of them has to itself.
struct RowPanel {
  Queries queries;
  std::int64_t p;  // of its block
  LogSums lse;
  const float* delta;
  const RowState* state;
};

template <GradientOperands O>
RowPanel panel_of(const RowBlock<O>& block, const Queries& query, std::int64_t p) {
  const std::int64_t first = p * O::rows;
  return {query.some(block.first + first, min(O::rows, block.count - first)),
          p,
          {block.lse + first, block.lse_rest + first},
          block.delta + first,
          block.state + first};
}

// c * tanh(s / c) less the row's log-sum-exp in place of s, and the slope of tanh. Both are much larger than
// their difference wherever a weight counts: it is computed of all that is known of them, and rounded once.
// Only what is hidden afterwards is -inf.
template <Vector S>
inline void apply_softcap_with_slope(const Call& c, const LogSums& lse, const Scores& t, float* slope) {
  const auto cap = S::fill(c.softcap.cap), cap_rest = S::fill(c.softcap.rest), zero = S::fill(0.0f),
             argument = S::fill(c.softcap.argument);
  typename S::F less[S::panel_vectors], less_rest[S::panel_vectors];
  for (int v = 0; v < S::panel_vectors; ++v) {
    less[v] = S::sub(zero, S::load(lse.of + v * S::lanes));
    less_rest[v] = S::sub(zero, S::load(lse.rest + v * S::lanes));
  }
  float *s = t.s, *const end = t.s + t.keys * t.width;
  while (s < end)
    for (int v = 0; v < S::panel_vectors; ++v, s += S::lanes, slope += S::lanes) {
      const auto [value, of_tanh] = tanh_with_slope<S>(S::mul(S::load(s), argument));
      const auto x = S::add(S::fma(value, cap, less[v]), S::fma(value, cap_rest, less_rest[v]));
      S::store(s, S::max(S::fill(-max_finite), x));
      S::store(slope, of_tanh);
    }
}

// What dS is the gradient by: the score, or the product before the softcap.
enum class By : std::uint8_t { score, product };

// What of a panel and a block of keys may be no number.
template <GradientOperands O>
struct Marks {
  const KeyBlock<O>& keys;
  bool may_overflow;  // a product
  bool any;           // a product, a key or a row

  Marks(const RowPanel& panel, const KeyBlock<O>& block, const GradientProducts<O>& products)
      : keys(block), may_overflow(products.may_overflow()), any(may_overflow || block.has_bad) {
    for (int r = 0; r < O::rows; ++r) any |= panel.state[r] != RowState::good;
  }
};

template <GradientOperands O>
class PairSteps {
  using S = typename O::S;
  static constexpr int rows = O::rows;

 public:
  // For up to `keys` keys at a time.
  PairSteps(const Call& call, std::int64_t keys, Cutter& memory)
      : c(call),
        unseen(memory.cut(keys * rows)),
        slope(memory.cut(c.softcap ? keys * rows : 0)),
        dropout(memory.cut(c.drop_below ? keys * rows : 0)) {}

  // P = 2^(S - log-sum-exp) in place of S; 0 where a mask hides the key.
  void weigh(const Scores& s, const RowPanel& panel, const Marks<O>& marks) const {
    if (marks.may_overflow) spoil_beyond<S>(max_finite, s);
    if (c.softcap) apply_softcap_with_slope<S>(c, panel.lse, s, slope);
    bias_and_mask<S>(c, s, panel.queries);
    if (marks.any) mark_unseen<S>(s, unseen);
    typename S::F base[S::panel_vectors], sum[S::panel_vectors];
    for (int n = 0; n < S::panel_vectors; ++n) {
      base[n] = c.softcap ? S::fill(0.0f) : S::load(panel.lse.of + n * S::lanes);  // a softcap subtracted it
      sum[n] = S::fill(0.0f);
    }
    cpu::HEED_THIS_TARGET::weigh<S, S::panel_vectors>(s.s, rows, s.keys, {base, sum, Exponential<S>(1.0f)});
  }

  // dS = P * (dP - delta) in place of dP. Dropout is that of the forward pass: dP is under it, and so is P
  // afterwards.
  void differentiate(const Scores& p, const Scores& ds, const RowPanel& panel, const Marks<O>& marks,
                     By by) const {
    if (c.drop_below) drop(ds, panel.queries);
    combine(panel.delta, p, ds);
    if (c.drop_below) scale_by(dropout, p);                   // fault: gradient-of-dropped-values
    if (c.softcap && by == By::product) scale_by(slope, ds);  // fault: gradient-without-slope
    if (marks.any) correct(panel.state, marks.keys, p, ds);
  }

 private:
  // The pattern of the forward pass, as factors; and dP under it.
  void drop(const Scores& dp, const Queries& queries) const {
    const Scores factors{dropout, rows, dp.first_key, dp.keys};
    fill(dropout, dp.keys * rows, 1.0f);
    for (std::int64_t r = 0; r < queries.count; ++r)
      apply_dropout(c, queries(r), static_cast<int>(r), factors);
    scale_by(dropout, dp);
  }

  static void combine(const float* delta, const Scores& p, const Scores& ds) {
    typename S::F less[S::panel_vectors];
    for (int n = 0; n < S::panel_vectors; ++n) less[n] = S::load(delta + n * S::lanes);
    const float *w = p.s, *const end = p.s + p.keys * rows;
    for (float* x = ds.s; w < end;)
      for (int n = 0; n < S::panel_vectors; ++n, w += S::lanes, x += S::lanes)
        S::store(x, S::mul(S::load(w), S::sub(S::load(x), less[n])));  // fault: gradient-without-delta
  }

  static void scale_by(const float* factor, const Scores& t) {
    for (std::int64_t n = 0; n < t.keys * rows; n += S::lanes)
      S::store(t.s + n, S::mul(S::load(t.s + n), S::load(factor + n)));
  }

  // What is not seen is 0, whatever it was multiplied with. What is seen and bad is the reference's, and so
  // is all that it reaches.
  void correct(const RowState* state, const KeyBlock<O>& keys, const Scores& p, const Scores& ds) const {
    const unsigned char* is_bad = keys.is_bad + (p.first_key - keys.packed.begin);
    for (std::int64_t j = 0; j < p.keys; ++j)
      for (int r = 0; r < rows; ++r) {
        float &w = p.s[j * rows + r], &x = ds.s[j * rows + r];
        if (unseen[j * rows + r] != 0 || state[r] == RowState::hollow)  // fault: gradient-of-hidden-pairs
          w = x = 0;
        // fault: gradient-of-a-bad-row
        else if (state[r] == RowState::bad || (keys.has_bad && is_bad[j]))
          w = x = __builtin_nanf("");
      }
  }

  const Call& c;
  float *const unseen, *const slope, *const dropout;  // (keys, rows)
};

}  // namespace heed::cpu::HEED_THIS_TARGET
