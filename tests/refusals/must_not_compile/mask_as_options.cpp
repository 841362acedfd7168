// SPDX-License-Identifier: Apache-2.0
// A mask is one option among others.
// Says: a mask is an option: {.masks = {...}}
#include "heed/attention.hpp"

void attend(const heed::Inputs& inputs, const heed::Outputs& outputs) {
#ifdef FIXED
  heed::attention(inputs, outputs, {.masks = {heed::Causal{}}});
#else
  heed::attention(inputs, outputs, heed::Causal{});
#endif
}
