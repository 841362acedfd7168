// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., 2011): a counter-based generator, so that the random word for a given weight
// is the same for every tiling, thread count, device and rank (S7).
#pragma once
#include <array>
#include <cstdint>

namespace heed::softmax {

constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(even)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// The word that decides whether weight (head, query, key) drops; head counts batch * heads + h.
constexpr std::uint32_t dropout_word(std::uint64_t seed, std::int64_t head, std::int64_t query,
                                     std::int64_t key) {
  const std::array<std::uint32_t, 4> words =
      philox({static_cast<std::uint32_t>(key / 4), static_cast<std::uint32_t>(query),
              static_cast<std::uint32_t>(head), 0},
             {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return words[static_cast<std::size_t>(key % 4)];
}

// A weight drops when its word lies below this: drop_probability * 2^32, rounded down.
constexpr std::uint64_t dropout_threshold(float drop_probability) {
  return static_cast<std::uint64_t>(static_cast<double>(drop_probability) * 4294967296.0);
}

}  // namespace heed::softmax
