// SPDX-License-Identifier: Apache-2.0
// Where the scale is applied to scores. Products of queries and keys stay as they are, scores are in units of
// the scale, and the difference of two of them is scaled inside the exponential, by the multiply-adds that
// part it into a whole number and a rest: no rounding and no instruction is added. What is added to scores,
// or limits them, is brought into their unit.
#pragma once
#include "softmax/state.hpp"

namespace heed::softmax {

struct Scaling {
  float query = 1;     // what queries are multiplied with
  float exponent = 1;  // what a difference of scores is multiplied with, to be one of base 2
  float unit = static_cast<float>(log2_e);  // what a natural score is multiplied with, to be one of these
  double natural = ln_2;                    // and back

  // Of a score, one rounding.
  constexpr float in_base_2(float score) const { return score * exponent; }
  constexpr float in_units(float of_natural) const { return static_cast<float>(of_natural / natural); }
};

// Scores in base 2: queries are multiplied, one rounding for each dimension.
constexpr Scaling scaled_queries(float scale) { return {.query = in_base_2(scale)}; }

// Negated queries have negated products. A scale between 2^-16 and 1 leaves a bias or a softcap in the range
// of f32, and a difference of scores beyond it is one whose weight is 0; any other is multiplied to the
// queries.
constexpr Scaling scaling_of(float scale) {
  const float size = scale < 0 ? -scale : scale;
  if (!(size >= 0x1p-16f && size <= 1)) return scaled_queries(scale);
  const auto natural = static_cast<double>(size);
  return {.query = scale < 0 ? -1.0f : 1.0f,
          .exponent = in_base_2(size),
          .unit = static_cast<float>(1 / natural),
          .natural = natural};
}

}  // namespace heed::softmax
