// SPDX-License-Identifier: Apache-2.0
// What a layer is made from, between C and C++.
#pragma once
#include "heed/c.h"
#include "heed/layer.hpp"

namespace heed::c {

LayerConfig to_config(const heed_layer_config*);
heed_layer_config from_config(const LayerConfig&);  // of a completed one, without its rotary
LayerWeights to_weights(const heed_layer_weights*);

}  // namespace heed::c
