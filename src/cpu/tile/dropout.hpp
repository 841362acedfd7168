// SPDX-License-Identifier: Apache-2.0
// Drops weights of a stretch, or scales those that stay (S7).
#pragma once
#include <cstdint>

#include "cpu/tile/score.hpp"
#include "cpu/call.hpp"
#include "softmax/philox.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Of row r. What the loops read is copied: after every store the compiler would read again what it only has a
// reference to.
inline void apply_dropout(const Call& c, const Query& q, int r, const Scores t) {
  const std::uint64_t seed = c.seed, below = c.drop_below;
  const std::int64_t head = q.b * c.all_heads + c.first_head + q.h, i = q.i;
  const float scale = c.keep_scale;
  for (std::int64_t j = -(t.first_key % 4); j < t.keys; j += 4) {
    const softmax::Words words = softmax::dropout_words(seed, head, i, (t.first_key + j) / 4);
    for (std::int64_t n = max(0, -j); n < min(4, t.keys - j); ++n) {
      float& weight = t.s[(j + n) * t.width + r];
      weight = words.word[n] < below ? 0.0f : weight * scale;  // fault: dropout-word
    }
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
