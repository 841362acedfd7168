// SPDX-License-Identifier: Apache-2.0
// A checked call of the layer: what each projection reads, and where every token is.
#pragma once
#include <span>
#include <vector>

#include "heed/layer.hpp"
#include "layer/cached_call.hpp"
#include "refusal/arguments.hpp"

namespace heed::layer {

struct LayerInputs {
  View x, context, value;
  std::int64_t keys = 0;                                       // of the batch entry that has most
  GrowingSequences cached{};                                   // empty without a cache
  std::span<const std::int64_t> positions{}, key_positions{};  // empty where nothing is turned here
  std::vector<std::int64_t> counted{};                         // where the call says nothing
  std::vector<std::int64_t> lengths{};  // per batch entry; where the rotary asks for them
};

// What a call reads, against the completed configuration, or throws Error.
LayerInputs check_read(const LayerConfig&, const AttentionLayer::Call&, const Options&);
// Where its tokens are; and that the options leave to the layer what it owns.
void place_tokens(const LayerConfig&, const AttentionLayer::Call&, const Options&, LayerInputs&);
Extents extents_of(const LayerConfig&, const LayerInputs&);

// Every argument against the completed configuration, or throws Error. What only concerns attention() is left
// to it.
LayerInputs check_call(const LayerConfig&, const AttentionLayer::Call&, const Outputs&, const Options&);

}  // namespace heed::layer
