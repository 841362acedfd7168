// SPDX-License-Identifier: Apache-2.0
// Which cases belong to which suite.
#pragma once
#include <cstdint>
#include <vector>

#include "bench/case.hpp"

namespace heed::tool {

// limits and ranks have no case at all.
enum class Suite : std::uint8_t { limits, heads, prefill, decode, layer, backward, ranks, all };
enum class Size : std::uint8_t { full, quick };  // quick: the long prefill is 2048 tokens, not 4096

std::vector<Case> cases_of(Suite, Size);

}  // namespace heed::tool
