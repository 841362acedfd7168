// SPDX-License-Identifier: Apache-2.0
// There is no switch for masks: true is not a mask.
// Says: no masks: booleans are Keep
#include "heed/attention.hpp"

heed::Options options() {
#ifdef FIXED
  return {.masks = {heed::Causal{}}};
#else
  return {.masks = {true}};
#endif
}
