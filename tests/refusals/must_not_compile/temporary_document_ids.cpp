// SPDX-License-Identifier: Apache-2.0
// The mask views the numbers, so the vector must outlive it.
// Says: gone at the end of the line: give it a name
#include <cstdint>
#include <vector>

#include "heed/mask.hpp"

heed::Mask documents() {
#ifdef FIXED
  static const std::vector<std::int32_t> ids{1, 1, 2};
  return heed::Document{ids};
#else
  return heed::Document{std::vector<std::int32_t>{1, 1, 2}};
#endif
}
