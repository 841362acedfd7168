// SPDX-License-Identifier: Apache-2.0
// Masks are a list, of one as well.
// Says: a list has braces, .masks = {Causal{}}
#include "heed/attention.hpp"

heed::Options options() {
#ifdef FIXED
  return {.masks = {heed::Causal{}}};
#else
  return {.masks = heed::Causal{}};
#endif
}
