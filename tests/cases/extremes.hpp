// SPDX-License-Identifier: Apache-2.0
// Calls at the ends of f32's range and with numbers that are none, made so that the right answer is exact in
// every type: the weights are equal among a power of two of keys, or all on one, and the values are small
// whole numbers.
#pragma once
#include <string>
#include <vector>

#include "cases/call.hpp"

namespace heed::cases {

struct Extreme {
  std::string name;
  Call call;
  float first;  // out(0, 0, 0, 0), worked out by hand from the rules
};

// Each over `keys` keys, a multiple of four: what is said of keys 0 to 3 is repeated.
std::vector<Extreme> extremes(DType dtype, std::int64_t keys);

}  // namespace heed::cases
