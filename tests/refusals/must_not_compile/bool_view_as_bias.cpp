// SPDX-License-Identifier: Apache-2.0
// Booleans hide or keep; they are never added.
#include "heed/attention.hpp"

heed::Options options(const heed::BoolView& where) {
#ifdef FIXED
  return {.masks = {heed::Hide{where}}};
#else
  return {.bias = where};
#endif
}
