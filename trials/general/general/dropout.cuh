// SPDX-License-Identifier: Apache-2.0
// Which weights drop: Philox4x32-10 (softmax/philox.hpp is the definition). One counter gives the words of
// four neighbouring keys, which two lanes have for two rows: each lane computes one row's and they exchange
// what the other needs.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "general/tile.cuh"

namespace heed::cuda::general {

HEED_DEVICE void philox(std::uint32_t (&x)[4], std::uint64_t key) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * x[0], odd = std::uint64_t{0xCD9E8D57u} * x[2];
    x[0] = static_cast<std::uint32_t>(odd >> 32) ^ x[1] ^ k0;
    x[1] = static_cast<std::uint32_t>(odd);
    x[2] = static_cast<std::uint32_t>(even >> 32) ^ x[3] ^ k1;
    x[3] = static_cast<std::uint32_t>(even);
  }
}

// Of two rows of a thread: rows l / 4 and l / 4 + 8 of a row tile.
class Droppers {
 public:
  HEED_DEVICE Droppers(const Call& c, int b, int i0, int h0, int i1, int h1)
      : seed(c.seed),
        below(static_cast<std::uint32_t>(c.drop_below)),
        is_odd(lane_index() % 2 != 0),
        query(static_cast<std::uint32_t>(is_odd ? i1 : i0)),
        head(static_cast<std::uint32_t>(b * static_cast<int>(c.heads) + (is_odd ? h1 : h0))) {}

  // weights: keys j and j + 1 of the first row, then of the second.
  HEED_DEVICE void apply(float (&weights)[4], int j) const {
    std::uint32_t x[4] = {static_cast<std::uint32_t>(j / 4), query, head, 0};
    philox(x, seed);
    // An even lane has keys 4 n and 4 n + 1 and computed its first row; the odd one beside it the others, and
    // its second.
    const std::uint32_t sent[2] = {is_odd ? x[0] : x[2], is_odd ? x[1] : x[3]};
    const std::uint32_t got[2] = {word_across(sent[0], 1), word_across(sent[1], 1)};
    const std::uint32_t own[2] = {is_odd ? x[2] : x[0], is_odd ? x[3] : x[1]};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if ((is_odd ? got[e] : own[e]) < below) weights[e] = 0;
      if ((is_odd ? own[e] : got[e]) < below) weights[2 + e] = 0;
    }
  }

 private:
  const std::uint64_t seed;
  const std::uint32_t below;  // less than 2^32, as the probability is less than 1
  const bool is_odd;
  const std::uint32_t query, head;
};

}  // namespace heed::cuda::general
