// SPDX-License-Identifier: Apache-2.0
// Joins two results row by row, in double precision.
#pragma once
#include "heed/attention.hpp"

namespace heed::cpu {

void merge(const Outputs& into, const Results& other);

}  // namespace heed::cpu
