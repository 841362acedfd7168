// SPDX-License-Identifier: Apache-2.0
// Lengths are numbers of 32 bits.
// Says: numbers of another type: lengths and ids are std::int32_t, slopes float
#include <cstdint>
#include <vector>

#include "heed/mask.hpp"

heed::Mask padding([[maybe_unused]] const std::vector<std::int64_t>& wide,
                   [[maybe_unused]] const std::vector<std::int32_t>& narrow) {
#ifdef FIXED
  return heed::KeyLengths{narrow};
#else
  return heed::KeyLengths{wide};
#endif
}
