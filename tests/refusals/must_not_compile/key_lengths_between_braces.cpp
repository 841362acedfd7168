// SPDX-License-Identifier: Apache-2.0
// The mask views the lengths, and numbers between braces are gone at the end of the line.
#include <array>
#include <cstdint>

#include "heed/mask.hpp"

heed::Mask padding() {
#ifdef FIXED
  static constexpr std::array<std::int32_t, 2> lengths{9, 4};
  return heed::KeyLengths{lengths};
#else
  return heed::KeyLengths{{9, 4}};
#endif
}
