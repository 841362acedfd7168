// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (S15): pairs of a head's dimensions rotate by an angle that grows with the
// token's position, at frequencies that a model may have scaled to reach further than it was trained for.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "heed/export.hpp"
#include "heed/tensor.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

enum class RotaryPairs : std::uint8_t { halves, adjacent };  // (d, d + dims/2), or (2d, 2d + 1)

// The scalings of Hugging Face's configurations, by their names there. original_length is the length a model
// was trained with. Every factor must be said; it is by how much the model reaches further.
struct LinearScaling {
  float factor = 0;
  bool operator==(const LinearScaling&) const = default;
};

// The base grows with the sequence once that is longer than original_length.
struct DynamicScaling {
  float factor = 0;
  std::int64_t original_length = 0;
  bool operator==(const DynamicScaling&) const = default;
};

// Pairs that rotate beta_fast times or more within original_length stay as they are, those that rotate
// beta_slow times or less slow down by the factor, and a ramp leads from the one to the other.
struct YarnScaling {
  float factor = 0;
  std::int64_t original_length = 0;
  float beta_fast = 32, beta_slow = 1;
  bool truncate = true;                     // the ramp begins and ends at whole pairs
  std::optional<float> attention_factor{};  // of what is turned; default: 1 + ln(factor) / 10
  bool operator==(const YarnScaling&) const = default;
};

// The same with wavelengths: original_length / high_frequency_factor and / low_frequency_factor.
struct Llama3Scaling {
  float factor = 0;
  std::int64_t original_length = 0;
  float low_frequency_factor = 1, high_frequency_factor = 4;
  bool operator==(const Llama3Scaling&) const = default;
};

// Each pair has a divisor of its own: a short one, or a long one where the sequence is longer than
// original_length.
struct LongRopeScaling {
  std::vector<float> short_factors{}, long_factors{};  // dims / 2 each
  std::int64_t original_length = 0;
  float factor = 0;  // for the default of attention_factor: sqrt(1 + ln(factor) / ln(original_length))
  std::optional<float> attention_factor{};
  bool operator==(const LongRopeScaling&) const = default;
};

using RotaryScaling =
    std::variant<LinearScaling, DynamicScaling, YarnScaling, Llama3Scaling, LongRopeScaling>;

struct Rotary {
  float base = 10000.0f;
  std::optional<std::int64_t> dims{};  // how many leading dimensions turn; even; default: the whole head
  RotaryPairs pairs = RotaryPairs::halves;
  std::optional<RotaryScaling> scaling{};
  bool operator==(const Rotary&) const = default;
};

// Turns x (batch, heads, length, dim) in place. positions has one entry per token, shared by the batch
// (length entries), or one per batch entry and token (batch * length entries).
//
// A dynamic or longrope scaling goes by the length of the sequence that the tokens belong to: `lengths` has
// one entry, or one per batch entry; default: each one's largest position + 1. Other scalings ignore it.
HEED_API void rotate(const MutableView& x, std::span<const std::int64_t> positions, const Rotary& = {},
                     std::span<const std::int64_t> lengths = {});

}  // namespace HEED_NAMESPACE
