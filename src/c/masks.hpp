// SPDX-License-Identifier: Apache-2.0
// The list of masks of a call: a tag and its fields become a type.
#pragma once
#include "heed/attention.hpp"
#include "heed/c.h"

namespace heed::c {

void add_masks(const heed_masks&, Options&);

}  // namespace heed::c
