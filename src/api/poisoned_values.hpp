// SPDX-License-Identifier: Apache-2.0
// Values that are NaN or infinite. Of rows that a kernel left to the reference they alone nearly always
// decide what is left, and no row has to be computed in 64 bits for it.
#pragma once
#include <vector>

#include "problem/problem.hpp"
#include "reference/row.hpp"

namespace heed::api {

// Writes what is decided so, as the reference would, and takes the rows of which that was all off the list.
void settle_poisoned(const Problem&, std::vector<reference::UnfinishedRow>& unfinished);

}  // namespace heed::api
