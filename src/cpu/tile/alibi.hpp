// SPDX-License-Identifier: Apache-2.0
// ALiBi (S21): what every score loses with the distance of its key, computed where it is added.
#pragma once
#include <cstdint>

#include "cpu/decode/dots.hpp"
#include "cpu/tile/exp2.hpp"
#include "cpu/tile/product.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Whole numbers up to 2^24 are exact in f32, and kernels are not given more keys and queries than that.
inline float place_of(const Call& c, const Query& q) {
  const Sequence& s = c.sequences[q.b];
  return static_cast<float>(q.i + (c.alibi.queries_are_last ? s.keys - s.queries : 0));
}

inline float slope_of(const Call& c, const Query& q) { return c.alibi.of_heads[q.b * c.alibi.step + q.h]; }

inline float alibi_at(const Call& c, const Query& q, std::int64_t j) {
  return -slope_of(c, q) * __builtin_fabsf(place_of(c, q) - static_cast<float>(j));
}

// Added as a bias that holds the same numbers would be (mask.hpp), so that the bits are the same; but what
// leaves the range before a bias might bring it back is NaN.
template <Vector S>
[[gnu::noinline]] inline void add_alibi(const Call& c, const Scores& t, const Queries& queries) {
  using F = typename S::F;
  constexpr std::int64_t capacity = max(Tile<S>::rows, max_short_rows<S>);
  float minus_slope[capacity], place[capacity];
  for (std::int64_t r = 0; r < t.width; ++r) {
    const Query q = queries(min(r, queries.count - 1));
    minus_slope[r] = -slope_of(c, q);
    place[r] = place_of(c, q);  // fault: alibi-place
  }
  const F lowest = S::fill(-max_finite), to_units = S::fill(c.scaling.unit),
          below = c.bias.data ? S::fill(__builtin_nanf("")) : lowest;
  float* s = t.s;
  for (std::int64_t j = 0; j < t.keys; ++j) {
    const F key = S::fill(static_cast<float>(t.first_key + j));
    for (std::int64_t r = 0; r < t.width; r += S::lanes, s += S::lanes) {
      const F distance = S::abs(S::sub(S::load(place + r), key));
      const F x = S::mul(S::load(minus_slope + r), distance);
      const F lost = S::fma(x, to_units, S::load(s));
      S::store(s, S::less(lost, lowest, below, lost));
    }
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
