// SPDX-License-Identifier: Apache-2.0
// Random numbers from integers alone, so that C++ and tests/fixtures/make_fixtures.py make the same inputs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace heed::cases {

constexpr std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Element i of a stream: a multiple of 2^-23 in [-1, 1), exact in float.
constexpr float uniform(std::uint64_t stream, std::uint64_t i) {
  const auto top = static_cast<std::int32_t>(mix(mix(stream) + i) >> 40);
  return static_cast<float>(top - (1 << 23)) * 0x1p-23f;
}

inline std::vector<float> uniforms(std::uint64_t stream, std::int64_t count, float magnitude = 1) {
  std::vector<float> made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = uniform(stream, i) * magnitude;
  return made;
}

// Choices drawn one after another from one seed; the seed alone reproduces them.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(mix(seed ^ 0xD1CEu)) {}
  std::uint64_t bits() { return mix(seed_ + drawn_++); }
  std::int64_t between(std::int64_t low, std::int64_t high) {  // both ends included
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  template <class T>
  T pick(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(from.size()) - 1))];
  }

 private:
  std::uint64_t seed_, drawn_ = 0;
};

}  // namespace heed::cases
