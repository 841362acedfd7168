// SPDX-License-Identifier: Apache-2.0
// A layer takes options as attention() does.
// Says: a mask is an option: .masks
#include "heed/layer.hpp"

void attend(const heed::AttentionLayer& layer, const heed::AttentionLayer::Call& call,
            const heed::Outputs& outputs) {
#ifdef FIXED
  layer(call, outputs, {.masks = {heed::Causal{}}});
#else
  layer(call, outputs, heed::Causal{});
#endif
}
