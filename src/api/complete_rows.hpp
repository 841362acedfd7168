// SPDX-License-Identifier: Apache-2.0
// Rows that a kernel could not finish (S13), computed in 64 bits with the reference's bits: a panel of rows
// at a time over all keys of their KV head. A row whose sum is NaN costs no more than its scores.
#pragma once
#include <vector>

#include "problem/problem.hpp"
#include "reference/row.hpp"

namespace heed::api {

// Of a problem over plain keys and values. Results that are numbers keep their bits.
void complete_rows(const Problem&, std::vector<reference::UnfinishedRow>);

}  // namespace heed::api
