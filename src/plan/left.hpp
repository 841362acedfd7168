// SPDX-License-Identifier: Apache-2.0
// Rows that a kernel left to the reference, where the reference cannot have their keys.
#pragma once
#include "problem/problem.hpp"

namespace heed::planning {

// Throws Error::value, which names the first of them, where there are any. `name` is that of the call.
void check_none_unfinished(const char* name, const Problem&);

}  // namespace heed::planning
