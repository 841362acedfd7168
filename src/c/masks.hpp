// SPDX-License-Identifier: Apache-2.0
// The list of masks of a call: a tag and its fields become a type.
#pragma once
#include <optional>

#include "heed/attention.hpp"
#include "heed/c.h"

namespace heed::c {

void add_masks(const heed_masks&, Options&);
std::optional<Align> to_align(const char* name, const char* field, heed_align);  // 0: not said

}  // namespace heed::c
