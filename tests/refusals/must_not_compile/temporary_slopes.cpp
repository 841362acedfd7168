// SPDX-License-Identifier: Apache-2.0
// The options view the slopes, so the vector must outlive them.
// Says: gone at the end of the line: give it a name
#include <vector>

#include "heed/attention.hpp"

heed::Options sloping() {
#ifdef FIXED
  static const std::vector<float> slopes{0.5f, 0.25f};
  return {.alibi = heed::Alibi{slopes}};
#else
  return {.alibi = heed::Alibi{std::vector<float>{0.5f, 0.25f}}};
#endif
}
