// SPDX-License-Identifier: Apache-2.0
// There is no kernel for double, and its bits are no floats.
#include "heed/attention.hpp"

heed::Inputs inputs([[maybe_unused]] const double* doubles, [[maybe_unused]] const float* floats) {
#ifdef FIXED
  return {.q = {floats, {.length = 3, .dim = 2}}};
#else
  return {.q = {doubles, {.length = 3, .dim = 2}}};
#endif
}
