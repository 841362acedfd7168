// SPDX-License-Identifier: Apache-2.0
// What is refused of a rotary embedding, whoever has it: rotate(), a layer or a cache.
#pragma once
#include <cstdint>
#include <vector>

#include "heed/rotary.hpp"

namespace heed::rotary {

// `name` is how the caller calls it: "rotary" or "config.rotary". `dim` is the head's.
void check_rotary(const Rotary&, std::int64_t dim, const char* name);

const char* name_of(const RotaryScaling&);  // "linear", "dynamic", "yarn", "llama3", "longrope"

// How fast each pair rotates (S15): the powers of the base, as the scaling changes them.

// Radians per position. In double: at position 100000 a float angle would be off by a hundredth of a radian.
struct Frequencies {
  std::vector<double> per_pair{};
  double attention_factor = 1;  // what is rotated is multiplied by it
};

// Of a checked embedding of `dims` dimensions; `length` is that of the sequence, for the scalings that ask.
Frequencies frequencies(const Rotary&, std::int64_t dims, std::int64_t length);

bool depends_on_length(const Rotary&);

}  // namespace heed::rotary
