// SPDX-License-Identifier: Apache-2.0
// What a bias and a boolean mask make of scores: of a vector of them, and of whole lines of a mask, of which
// sixteen rows have one each that was read where it lies.
#pragma once
#include <cstdint>

#include "cpu/algorithm/exp2.hpp"
#include "cpu/algorithm/score.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Replaces s(key, sixteen rows) by change(score, x), x being the key's element of turned lines.
template <Vector S, Type type, class Lines, class Change>
[[gnu::always_inline]] inline void change_turned(const Lines& lines, float* s, std::int64_t width,
                                                 const Change change) {
#pragma GCC unroll 16
  for (const auto& line : lines) {
    if constexpr (type == Type::f32) {
      S::store(s, change(S::load(s), S::f32_of(line)));
      s += width;
    } else {
      S::store(s, change(S::load(s), S::bf16_of(line, 0)));
      S::store(s + width, change(S::load(s + width), S::bf16_of(line, 1)));
      s += 2 * width;
    }
  }
}

// A bias of -inf hides, whatever the score (S4). Any other is an ordinary number, however large and negative:
// in units of the scores it must not overflow into a mask (S3). A row all of whose scores end up as the
// lowest number is looked at again (finish.hpp).
template <Vector S>
struct AddBias {
  using F = typename S::F;
  const F to_units, lowest = S::fill(-most_finite), hidden = S::fill(minus_infinity);

  explicit AddBias(const Call& c) : to_units(S::fill(c.scaling.unit)) {}
  F operator()(F s, F x) const { return S::less(x, lowest, hidden, S::max(lowest, S::fma(x, to_units, s))); }

  static constexpr bool takes_lines_of(Type type) { return type == Type::f32 || type == Type::bf16; }

  // No bias above -2^80 makes the lowest number lower, and a score is not -inf before.
  template <Type type, class Lines>
  [[gnu::always_inline]] void change_lines(Lines& x, float* s, std::int64_t width) const {
    const bool is_far = type == Type::f32 ? S::any_f32_far_below(x) : S::any_bf16_far_below(x);
    S::turn(x);
    if (is_far)
      change_turned<S, type>(x, s, width, *this);
    else
      change_turned<S, type>(x, s, width,
                             [e = to_units](F score, F bias) { return S::fma(bias, e, score); });
  }
};

// Hides what a boolean mask hides. Where x is a number, it is not 0 for true.
template <Vector S, bool visible_when>
struct HideWhere {
  using F = typename S::F;
  const F half = S::fill(0.5f), hidden = S::fill(minus_infinity);

  F operator()(F s, F x) const {
    return visible_when ? S::less(S::abs(x), half, hidden, s) : S::less(half, S::abs(x), hidden, s);
  }

  static constexpr bool takes_lines_of(Type type) { return type == Type::int8; }

  template <Type, class Lines>
  [[gnu::always_inline]] void change_lines(Lines& x, float* s, std::int64_t width) const {
    S::turn(x);
#pragma GCC unroll 64
    for (int n = 0; n < 64; ++n, s += width) S::template hide_where_byte<visible_when>(x[n / 4], n % 4, s);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
