// SPDX-License-Identifier: Apache-2.0
// A checked call of the layer: what each projection reads, and where every token is.
#pragma once
#include <span>
#include <vector>

#include "heed/layer.hpp"

namespace heed {

struct LayerInputs {
  View x, context, value;
  std::span<const std::int64_t> positions{}, key_positions{};  // empty without rotary
  std::vector<std::int64_t> counted{};                         // 0, 1, 2, ..., where the call says nothing
};

// Every argument against the completed configuration, or throws Error. What only concerns attention() is left
// to it.
LayerInputs check_call(const LayerConfig&, const AttentionLayer::Call&, const Outputs&, const Options&);

}  // namespace heed
