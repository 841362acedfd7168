// SPDX-License-Identifier: Apache-2.0
// From products to scores: softcap, bias and masks, on a stretch of s(key, row) in base 2. Unseen becomes
// -inf.
#pragma once
#include <cstdint>

#include "cpu/algorithm/exp2.hpp"
#include "cpu/algorithm/operands.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/call.hpp"

namespace heed::cpu {

constexpr float most_finite = 3.40282347e+38f;

// Which query a row of scores belongs to.
struct Query {
  std::int64_t b, h, i;
};

// The keys that Causal, Window and KeyLengths let query i of batch entry b see (problem.hpp).
template <class S>
inline KeyRange visible_keys(const Call& c, std::int64_t b, std::int64_t i) {
  return {most(0, i + c.first_offset), least(c.key_counts[b], i + c.end_offset)};
}

// s(key, row) for keys [first_key, first_key + keys), `width` rows apart; row r belongs to query[r].
struct Scores {
  float* s;
  std::int64_t width, first_key, keys;
};

template <class S>
inline void apply_softcap(const Call& c, const Scores& t) {
  const auto cap = S::fill(c.softcap_log2e), inverse = S::fill(1.0f / c.softcap_log2e);
  for (std::int64_t n = 0; n < t.keys * t.width; n += S::lanes)
    S::store(t.s + n, S::mul(cap, tanh<S>(S::mul(S::load(t.s + n), inverse))));
}

template <class S>
inline void add_bias(const Call& c, const Query& q, float* column, const Scores& t) {
  const Row bias = row_of<S>(c.bias, q.b, q.h, q.i);
  for (std::int64_t j = 0; j < t.keys && t.first_key + j < c.keys; ++j) {
    const float x = read<S>(bias, t.first_key + j);
    if (x == minus_infinity) {
      column[j * t.width] = x;
      continue;
    }
    // A huge negative number is an ordinary number (S3): in base 2 it must not overflow into a mask.
    const float sum = __builtin_fmaf(x, log2_e, column[j * t.width]);
    column[j * t.width] = sum < -most_finite ? -most_finite : sum;
  }
}

template <class S>
inline void apply_bool_masks(const Call& c, const Query& q, float* column, const Scores& t) {
  for (std::int64_t n = 0; n < c.mask_count; ++n) {
    const BoolTensor& m = c.masks[n];
    const bool* row = m.data + q.b * m.batch + q.h * m.heads + q.i * m.length;
    for (std::int64_t j = 0; j < t.keys && t.first_key + j < c.keys; ++j)
      if (row[(t.first_key + j) * m.dim] != m.visible_when) column[j * t.width] = minus_infinity;
  }
}

// Everything between the product and the softmax for one row, whose range of visible keys is `seen`.
template <class S>
inline void bias_and_mask(const Call& c, const Query& q, KeyRange seen, int r, const Scores& t) {
  float* column = t.s + r;
  if (c.bias.data) add_bias<S>(c, q, column, t);
  if (c.mask_count) apply_bool_masks<S>(c, q, column, t);
  const std::int64_t begin = most(0, least(seen.begin - t.first_key, t.keys)),
                     end = most(begin, seen.end - t.first_key);
  for (std::int64_t j = 0; j < begin; ++j) column[j * t.width] = minus_infinity;
  for (std::int64_t j = end; j < t.keys; ++j) column[j * t.width] = minus_infinity;
}

}  // namespace heed::cpu
