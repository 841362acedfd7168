// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (S15) in place, of tensors that differ in heads and strides only.
#pragma once
#include <cstdint>
#include <span>

#include "heed/rotary.hpp"

namespace heed::cpu {

void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions, const Rotary&,
            std::span<const std::int64_t> lengths);

}  // namespace heed::cpu
