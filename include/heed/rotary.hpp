// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (S15): pairs of a head's dimensions turn by an angle that grows with the token's
// position.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "heed/tensor.hpp"

namespace heed {

enum class RotaryPairs : std::uint8_t { halves, adjacent };  // (d, d + dims/2), or (2d, 2d + 1)

struct Rotary {
  float base = 10000.0f;
  std::optional<std::int64_t> dims{};  // how many leading dimensions turn; even; default: the whole head
  RotaryPairs pairs = RotaryPairs::halves;
};

// Turns x (batch, heads, length, dim) in place. positions has one entry per token, shared by the batch
// (length entries), or one per batch entry and token (batch * length entries).
void rotate(const MutableView& x, std::span<const std::int64_t> positions, const Rotary& = {});

}  // namespace heed
