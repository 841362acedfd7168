// SPDX-License-Identifier: Apache-2.0
// A few rows over a cache that is spread over ranks, on one CPU target.
#pragma once
#include <memory>

#include "backend/backend.hpp"
#include "cpu/isa/target.hpp"

namespace heed::cpu {

std::unique_ptr<SpreadDecode> begin_spread(const Target&, const Problem&, const Spread&);

}  // namespace heed::cpu
