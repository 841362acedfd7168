// SPDX-License-Identifier: Apache-2.0
// See loops.hpp: any other architecture, in plain C++; a lower bound of what the machine can do.
#if !defined(__aarch64__) && !defined(__x86_64__)
#include <array>
#include <cmath>

#include "bench/loops.hpp"

namespace heed::tool {
namespace {

constexpr std::size_t accumulators = 16;

void run_multiply_adds(std::int64_t rounds) {
  std::array<float, accumulators> sums{};
  volatile float source = 0;
  const float a = source, b = source;
  for (std::int64_t round = 0; round < rounds; ++round)
    for (float& sum : sums) sum = sum * a + b;
  for (const float sum : sums) source = sum;
}

void read_words(const std::byte* from, std::size_t bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(from);
  std::array<std::uint64_t, 8> sums{};
  for (std::size_t i = 0; i < bytes / sizeof(std::uint64_t); i += sums.size())
    for (std::size_t lane = 0; lane < sums.size(); ++lane) sums[lane] ^= words[i + lane];
  volatile std::uint64_t sink = 0;
  for (const std::uint64_t sum : sums) sink = sum;
  static_cast<void>(sink);
}

}  // namespace

ArithmeticLoop fp32_loop() { return {"multiply-add", 2 * accumulators, run_multiply_adds}; }
std::optional<ArithmeticLoop> bf16_loop() { return {}; }
std::optional<ArithmeticLoop> int8_loop() { return {}; }
ReadLoop read_loop() { return read_words; }

}  // namespace heed::tool
#endif
