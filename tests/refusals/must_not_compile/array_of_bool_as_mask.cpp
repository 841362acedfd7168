// SPDX-License-Identifier: Apache-2.0
// Booleans alone say nothing of their polarity, nor of their extents.
// Says: booleans are Keep{{data, shape}} or Hide{...}, numbers a bias
#include "heed/attention.hpp"

heed::Options options() {
  static constexpr bool seen[] = {true, false, true};
#ifdef FIXED
  return {.masks = {heed::Keep{{seen, {.dim = 3}}}}};
#else
  return {.masks = {seen}};
#endif
}
