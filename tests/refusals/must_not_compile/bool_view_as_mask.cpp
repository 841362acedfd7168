// SPDX-License-Identifier: Apache-2.0
// A bare boolean view says nothing of its polarity, so it is not a mask.
// Says: no masks: booleans are Keep
#include "heed/attention.hpp"

heed::Options options(const heed::BoolView& where) {
#ifdef FIXED
  return {.masks = {heed::Keep{where}}};
#else
  return {.masks = {where}};
#endif
}
