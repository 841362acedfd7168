// SPDX-License-Identifier: Apache-2.0
// There is no kernel for long double, and its bits are no doubles.
#include "heed/attention.hpp"

heed::Inputs inputs([[maybe_unused]] const long double* wide, [[maybe_unused]] const double* doubles) {
#ifdef FIXED
  return {.q = {doubles, {.length = 3, .dim = 2}}};
#else
  return {.q = {wide, {.length = 3, .dim = 2}}};
#endif
}
