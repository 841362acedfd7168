// SPDX-License-Identifier: Apache-2.0
// Numbers that are added are a bias, not a mask.
// Says: no masks: booleans are Keep
#include "heed/attention.hpp"

heed::Options options(const heed::View& added) {
#ifdef FIXED
  return {.bias = added};
#else
  return {.masks = {added}};
#endif
}
