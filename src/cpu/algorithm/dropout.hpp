// SPDX-License-Identifier: Apache-2.0
// Which weights drop: Philox4x32-10, ten rounds in plain words (softmax/philox.hpp is the definition; a test
// holds the two against each other).
#pragma once
#include <cstdint>

#include "cpu/algorithm/score.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// The words for keys 4n ... 4n+3 of one query.
inline void dropout_words(const Call& c, const Query& q, std::int64_t n, std::uint32_t words[4]) {
  std::uint32_t x0 = static_cast<std::uint32_t>(n), x1 = static_cast<std::uint32_t>(q.i),
                x2 = static_cast<std::uint32_t>(q.b * c.heads + q.h), x3 = 0;
  std::uint32_t k0 = static_cast<std::uint32_t>(c.seed), k1 = static_cast<std::uint32_t>(c.seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * x0, odd = std::uint64_t{0xCD9E8D57u} * x2;
    x0 = static_cast<std::uint32_t>(odd >> 32) ^ x1 ^ k0;
    x1 = static_cast<std::uint32_t>(odd);
    x2 = static_cast<std::uint32_t>(even >> 32) ^ x3 ^ k1;
    x3 = static_cast<std::uint32_t>(even);
  }
  words[0] = x0, words[1] = x1, words[2] = x2, words[3] = x3;
}

// Drops or scales the weights of row r.
inline void apply_dropout(const Call& c, const Query& q, int r, const Scores& t) {
  for (std::int64_t j = -(t.first_key % 4); j < t.keys; j += 4) {
    std::uint32_t words[4];
    dropout_words(c, q, (t.first_key + j) / 4, words);
    for (std::int64_t n = most(0, -j); n < least(4, t.keys - j); ++n) {
      float& weight = t.s[(j + n) * t.width + r];
      weight = words[n] < c.drop_below ? 0.0f : weight * c.keep_scale;
    }
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
