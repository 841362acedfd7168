// SPDX-License-Identifier: Apache-2.0
// The rotary embedding between C and C++.
#pragma once
#include <optional>

#include "heed/c.h"
#include "heed/rotary.hpp"

namespace heed::c {

std::optional<Rotary> to_rotary(const char* name, const heed_rotary*);  // NULL: none
heed_rotary from_rotary(const Rotary&);                                 // its lists are those of the argument

}  // namespace heed::c
