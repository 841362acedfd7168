// SPDX-License-Identifier: Apache-2.0
// Keep and Hide are opposites and never become each other.
#include "heed/attention.hpp"

heed::Hide opposite(const heed::Keep& keep) {
#ifdef FIXED
  return {keep.where};
#else
  return keep;
#endif
}
