// SPDX-License-Identifier: Apache-2.0
// A weight in eight bits: twenty octaves below 1 in 251 steps of 5.7 %, so that both a linear and a
// logarithmic scale can be drawn from it.
#pragma once
#include <cstdint>

namespace HEED_NAMESPACE::view {

constexpr int octaves = 20;
enum Code : std::uint8_t {
  zero_code = 0,
  min_code = 1,    // 2^-20 and everything below it
  one_code = 252,  // 1 and everything above it
  not_finite_code = 254,
  hidden_code = 255
};

std::uint8_t code_of(float weight);
float weight_of(std::uint8_t code);  // NaN for hidden and for not finite

}  // namespace HEED_NAMESPACE::view
