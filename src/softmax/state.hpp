// SPDX-License-Identifier: Apache-2.0
// The softmax of a row over some of its keys, {max, sum, out}: the largest score, the sum of 2^(score - max),
// and the sum of the values weighted alike. That of no key is {-inf, 0, 0}. Here is how a state moves when a
// larger score comes, and what two of them over disjoint keys make. Scores are in base 2, or in whatever unit
// the caller's Power of two takes.
#pragma once
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>

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

// Two finished results for one row, over disjoint keys, as one (S12). A finished row is a state whose sum is
// 1 and whose maximum is the log-sum-exp.

struct Double {
  using F = double;
  static F fill(float x) { return static_cast<double>(x); }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F fma(F a, F b, F c) { return a * b + c; }  // rounded twice: the same in either order
  static F max(F a, F b) { return a > b || std::isnan(a) ? a : b; }
  static F less(F a, F b, F then, F otherwise) { return a < b ? then : otherwise; }
};

class MergedRow {
 public:
  MergedRow(double our_log_sum_exp, double their_log_sum_exp)
      : ours_(our_log_sum_exp),
        theirs_(their_log_sum_exp),
        merging_(merging<Double>(ours_ * log2_e, theirs_ * log2_e, [](double x) { return std::exp2(x); })) {}

  // A side that saw no key adds nothing, whatever its output: the other keeps its bits.
  bool is_ours() const { return theirs_ == -INFINITY; }
  bool is_theirs() const { return ours_ == -INFINITY; }

  // NaN and two log-sum-exps of +inf cannot be weighed; one of +inf outweighs every number, but NaN in an
  // output that weighs 0 is NaN.
  double out(double our, double their) const {
    if (is_ours() || is_theirs()) return is_ours() ? our : their;
    const bool can_be_weighed = !std::isnan(theirs_ - ours_);
    return merging_(our, their) / (can_be_weighed ? merging_(1, 1) : NAN);
  }
  double log_sum_exp() const {
    if (is_ours() || is_theirs()) return is_ours() ? ours_ : theirs_;
    return Double::max(ours_, theirs_) + std::log1p(std::min(merging_.ours, merging_.theirs));
  }

 private:
  double ours_, theirs_;
  Merging<Double> merging_;
};

// What gives a row one answer in every backend (docs/numerics.md): the order of sums, and where scores are
// scaled.

// Key blocks and chunks have fixed lengths anchored at key 0, so that the order of every sum depends on
// nothing but the row (O1). A chunk starts a fresh softmax state; chunks are merged in order whether or not
// they ran apart.
constexpr std::int64_t block_keys = 256;
constexpr std::int64_t chunk_keys = 1024;

// Sums are cut into chains, because the error of a chain grows with its length: each begins from 0, and what
// it comes to is added to those before it. A chain of weights has so many keys, and one over the dimensions
// of a head or the inputs of a projection so many terms, counted from key 0 and from dimension 0; one of
// weighted values is a block.
constexpr std::int64_t chain_keys = 32;
constexpr std::int64_t chain_terms = 128;

// Where the scale is applied to scores. Products of queries and keys stay as they are, scores are in units of
// the scale, and the difference of two of them is scaled inside the exponential, by the multiply-adds that
// part it into a whole number and a rest: no rounding and no instruction is added. What is added to scores,
// or limits them, is brought into their unit.

struct Scaling {
  float query = 1;     // what queries are multiplied with
  float exponent = 1;  // what a difference of scores is multiplied with, to be one of base 2
  float unit = static_cast<float>(log2_e);  // what a natural score is multiplied with, to be one of these
  double natural = ln_2;                    // and back
  double product = ln_2;  // what a product of such a query with a key is multiplied with, to be natural

  // Of a score, one rounding.
  constexpr float in_base_2(float score) const { return score * exponent; }
  constexpr float in_units(float of_natural) const { return static_cast<float>(of_natural / natural); }
};

// Scores in base 2: queries are multiplied, one rounding for each dimension.
constexpr Scaling scaled_queries(float scale) { return {.query = in_base_2(scale)}; }

// What a unit may be: it leaves a bias or a softcap in the range of f32, and a difference of scores beyond
// that is one whose weight is 0.
constexpr bool is_unit(float size) { return size >= 0x1p-16f && size <= 0x1p16f; }

// Where products may stay as they are. Negated queries have negated products.
constexpr bool keeps_products(float scale) {
  const float size = scale < 0 ? -scale : scale;
  return is_unit(size) && size <= 1;
}

// Any other scale is multiplied to the queries. With a softcap, 0 where there is none, the unit is the cap:
// scores are tanh itself, and no product with the cap is rounded.
constexpr Scaling scaling_of(float scale, float softcap) {
  if (!keeps_products(scale) || (softcap != 0 && !is_unit(softcap))) return scaled_queries(scale);
  const double product = scale < 0 ? -scale : scale, natural = softcap != 0 ? softcap : product;
  return {.query = scale < 0 ? -1.0f : 1.0f,
          .exponent = in_base_2(static_cast<float>(natural)),
          .unit = static_cast<float>(1 / natural),
          .natural = natural,
          .product = product};
}

// For gradients, whose scores are in base 2, as the log-sum-exp that they are measured against.
constexpr Scaling gradient_scaling_of(float scale, float softcap) {
  if (softcap == 0 || !keeps_products(scale)) return scaled_queries(scale);
  return {.query = scale < 0 ? -1.0f : 1.0f, .product = scale < 0 ? -scale : scale};
}

// What makes a score of a product: cap * tanh(argument * product).
struct Softcap {
  float cap = 0;       // in units of scores; 0: none
  float rest = 0;      // what a float does not hold of that
  float argument = 0;  // finite, so that 0 times it is 0

  constexpr explicit operator bool() const { return cap != 0; }
};

constexpr Softcap softcap_of(float natural, const Scaling& scaling) {
  if (natural == 0) return {};
  constexpr double max_finite = 0x1.fffffep127;
  const double cap = natural / scaling.natural, argument = scaling.product / natural;
  const auto rounded = static_cast<float>(cap);
  return {.cap = rounded,
          .rest = static_cast<float>(cap - static_cast<double>(rounded)),
          .argument = static_cast<float>(argument < max_finite ? argument : max_finite)};
}

}  // namespace heed::softmax
