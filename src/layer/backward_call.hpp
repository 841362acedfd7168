// SPDX-License-Identifier: Apache-2.0
// A checked call of the layer's backward pass.
#pragma once
#include "layer/call.hpp"

namespace heed::layer {

// Every argument of backward() against the completed configuration, or throws Error. What only concerns
// attention_backward() is left to it.
LayerInputs check_backward(const LayerConfig&, const AttentionLayer::Call&, const LayerGradients&,
                           const Options&);

// That the heads which a call kept have this call's extents.
void check_heads(const LayerConfig&, const LayerInputs&, const Heads&);

}  // namespace heed::layer
