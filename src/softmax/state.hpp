// SPDX-License-Identifier: Apache-2.0
// The softmax of a row over some of its keys, {max, sum, out}: the largest score, the sum of 2^(score - max),
// and the sum of the values weighted alike. That of no key is {-inf, 0, 0}. Here is how a state moves when a
// larger score comes, and what two of them over disjoint keys make. Scores are in base 2, or in whatever unit
// the caller's Power of two takes.
#pragma once
#include <concepts>

namespace heed::softmax {

constexpr double log2_e = 1.44269504088896340736, ln_2 = 0.693147180559945309417;

// What multiplies or limits scores.
[[gnu::always_inline]] constexpr float in_base_2(float x) { return static_cast<float>(x * log2_e); }

// What states are made of: F is one number for each of some rows.
template <class S>
concept Rows = requires(typename S::F x, float one) {
  { S::fill(one) } -> std::same_as<typename S::F>;
  { S::sub(x, x) } -> std::same_as<typename S::F>;
  { S::mul(x, x) } -> std::same_as<typename S::F>;
  { S::fma(x, x, x) } -> std::same_as<typename S::F>;
  { S::max(x, x) } -> std::same_as<typename S::F>;
  { S::less(x, x, x, x) } -> std::same_as<typename S::F>;
};

// What a difference of two scores is as a factor: 2 to its power, where scores are in base 2.
template <class P, class S>
concept Power = requires(const P& power, typename S::F x) {
  { power(x) } -> std::same_as<typename S::F>;
};

// The maximum to subtract: 0 where nothing was seen yet, so that -inf - max stays -inf.
template <Rows S>
inline typename S::F finite_max(typename S::F max) {
  const auto nothing = S::fill(-__builtin_inff()), zero = S::fill(0.0f);
  return S::less(nothing, max, max, S::less(max, zero, zero, max));
}

// What sum and out must be multiplied with when the maximum moves; 1 where it stays, whatever 2^0 is to a
// caller who rounds down, and where nothing was summed.
template <Rows S, Power<S> P>
inline typename S::F rescaling(typename S::F before, typename S::F max, const P& power) {
  const auto one = S::fill(1.0f), factor = power(S::sub(before, finite_max<S>(max)));
  return S::less(S::fill(-__builtin_inff()), before, S::less(before, max, factor, one), one);
}

// Two states as one: the larger maximum, and what each side's sum and out are multiplied with.
template <Rows S>
struct Merging {
  typename S::F max, ours, theirs;

  // Of both sides' sums, or of an element of their outs.
  typename S::F operator()(typename S::F our, typename S::F their) const {
    return S::fma(their, theirs, S::mul(our, ours));
  }
};

template <Rows S, Power<S> P>
inline Merging<S> merging(typename S::F our_max, typename S::F their_max, const P& power) {
  const auto max = S::max(our_max, their_max);
  return {max, rescaling<S>(our_max, max, power), rescaling<S>(their_max, max, power)};
}

}  // namespace heed::softmax
