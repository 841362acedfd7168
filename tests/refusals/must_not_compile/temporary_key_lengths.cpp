// SPDX-License-Identifier: Apache-2.0
// The mask views the lengths, so the vector must outlive it.
// Says: gone at the end of the line: give it a name
#include <cstdint>
#include <vector>

#include "heed/mask.hpp"

heed::Mask padding() {
#ifdef FIXED
  static const std::vector<std::int32_t> lengths{9, 4};
  return heed::KeyLengths{lengths};
#else
  return heed::KeyLengths{std::vector<std::int32_t>{9, 4}};
#endif
}
