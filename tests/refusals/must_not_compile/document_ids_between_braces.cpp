// SPDX-License-Identifier: Apache-2.0
// The mask views the numbers, and those between braces are gone at the end of the line.
#include <array>
#include <cstdint>

#include "heed/mask.hpp"

heed::Mask documents() {
#ifdef FIXED
  static constexpr std::array<std::int32_t, 3> ids{1, 1, 2};
  return heed::Document{.ids = ids};
#else
  return heed::Document{.ids = {1, 1, 2}};
#endif
}
