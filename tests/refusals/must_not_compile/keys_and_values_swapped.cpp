// SPDX-License-Identifier: Apache-2.0
// Designators follow the order q, k, v.
#include "heed/attention.hpp"

heed::Inputs inputs(const heed::View& q, const heed::View& k, const heed::View& v) {
#ifdef FIXED
  return {.q = q, .k = k, .v = v};
#else
  return {.q = q, .v = v, .k = k};
#endif
}
