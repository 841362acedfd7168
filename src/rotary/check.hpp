// SPDX-License-Identifier: Apache-2.0
// What is refused of a rotary embedding, whoever has it: rotate(), a layer or a cache.
#pragma once
#include <cstdint>

#include "heed/rotary.hpp"

namespace heed::rotary {

// `name` is how the caller calls it: "rotary" or "config.rotary". `dim` is the head's.
void check_rotary(const Rotary&, std::int64_t dim, const char* name);

const char* name_of(const RotaryScaling&);  // "linear", "dynamic", "yarn", "llama3", "longrope"

}  // namespace heed::rotary
