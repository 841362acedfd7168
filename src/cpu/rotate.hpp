// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (S15) in place.
#pragma once
#include <cstdint>
#include <span>

#include "heed/rotary.hpp"

namespace heed::cpu {

void rotate(const MutableView& x, std::span<const std::int64_t> positions, const Rotary&,
            std::span<const std::int64_t> lengths);

}  // namespace heed::cpu
