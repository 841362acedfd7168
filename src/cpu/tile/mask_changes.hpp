// SPDX-License-Identifier: Apache-2.0
// What a bias and a boolean mask make of scores: of a vector of them, and of whole lines of a mask, of which
// sixteen rows have one each that was read where it lies.
#pragma once
#include <cstdint>

#include "cpu/tile/exp2.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// In place of the maxima of scores that are not wanted yet, or not of a panel.
template <Vector S>
struct NoMaxima {
  void take(const Scores&) {}
};

// Where scores of sixteen rows lie, s(key, rows), and which vector of a panel they are.
struct SixteenRows {
  float* s;
  std::int64_t width, vector;
};

// Replaces scores by change(score, x), x being the key's element of transposed lines, and takes the maxima of
// what becomes of them: where they are read once more for it, a bias costs 12 heads of 1024 x 64 in f32 4
// points more with 16 threads, and one of each head in bf16 20 with 2 (AMX, a Xeon, November 2026).
template <Vector S, Type type, class Lines, class Highest, class Change>
[[gnu::always_inline]] inline void change_transposed(const Lines& lines, const SixteenRows at,
                                                     Highest& highest, const Change change) {
  constexpr int in_line = type == Type::f32 ? 1 : 2;  // keys
  constexpr bool takes = requires { highest.of; };
  const std::int64_t width = takes ? Tile<S>::rows : at.width;
  float* s = at.s;
  typename S::F so_far{};
  if constexpr (takes) so_far = highest.of[at.vector];
#pragma GCC unroll 16
  for (int n = 0; n < 16 * in_line; n += 4, s += 4 * width) {
    typename S::F x[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const auto score = S::load(s + k * width);
      const auto& line = lines[(n + k) / in_line];
      if constexpr (type == Type::f32)
        x[k] = change(score, S::f32_of(line));
      else
        x[k] = change(score, S::bf16_of(line, k % 2));
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) S::store(s + k * width, x[k]);
    if constexpr (takes) so_far = larger_of_four<S>(so_far, x);
  }
  if constexpr (takes) highest.of[at.vector] = so_far;
}

// A bias of -inf hides, whatever the score (S4). Any other is an ordinary number, however large and negative:
// in units of the scores it must not overflow into a mask (S3). A row all of whose scores end up as the
// lowest number is looked at again (finish.hpp).
template <Vector S>
struct AddBias {
  using F = typename S::F;
  const F to_units, lowest = S::fill(-max_finite), hidden = S::fill(minus_infinity);

  explicit AddBias(const Call& c) : to_units(S::fill(c.scaling.unit)) {}
  // fault: bias-sign, bias-overflows-into-a-mask
  F operator()(F s, F x) const { return S::less(x, lowest, hidden, S::max(lowest, S::fma(x, to_units, s))); }

  static constexpr bool takes_lines_of(Type type) { return type == Type::f32 || type == Type::bf16; }

  // No bias above -2^80 makes the lowest number lower, and a score is not -inf before.
  template <Type type, class Lines, class Highest>
  [[gnu::always_inline]] void change_lines(Lines& x, const SixteenRows at, Highest& highest) const {
    const bool is_far = type == Type::f32 ? S::any_f32_far_below(x) : S::any_bf16_far_below(x);
    S::turn(x);
    if (is_far)
      change_transposed<S, type>(x, at, highest, *this);
    else
      change_transposed<S, type>(x, at, highest,
                                 [e = to_units](F score, F bias) { return S::fma(bias, e, score); });
  }
};

// Hides what a boolean mask hides. Where x is a number, it is not 0 for true.
template <Vector S, bool visible_when>
struct HideWhere {
  using F = typename S::F;
  const F half = S::fill(0.5f), hidden = S::fill(minus_infinity);

  F operator()(F s, F x) const {
    // fault: byte-of-two-is-false
    return visible_when ? S::less(S::abs(x), half, hidden, s) : S::less(half, S::abs(x), hidden, s);
  }

  static constexpr bool takes_lines_of(Type type) { return type == Type::int8; }

  template <Type, class Lines>
  [[gnu::always_inline]] void change_lines(Lines& x, const SixteenRows at, NoMaxima<S>&) const {
    S::turn(x);
    float* s = at.s;
#pragma GCC unroll 64
    for (int n = 0; n < 64; ++n, s += at.width) S::template hide_where_byte<visible_when>(x[n / 4], n % 4, s);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
