// SPDX-License-Identifier: Apache-2.0
// A std::vector<bool> holds bits, and a mask is read bool by bool.
#include <vector>

#include "heed/mask.hpp"

heed::Keep kept([[maybe_unused]] const std::vector<bool>& bits, [[maybe_unused]] const bool* bools) {
#ifdef FIXED
  return {{bools, {.length = 3, .dim = 3}}};
#else
  return {{bits, {.length = 3, .dim = 3}}};
#endif
}
