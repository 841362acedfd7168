// SPDX-License-Identifier: Apache-2.0
// What gives a row one answer in every backend (docs/numerics.md): the order of sums, and where scores are
// scaled.
#pragma once
#include <cstdint>

#include "softmax/state.hpp"

namespace heed::softmax {

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
