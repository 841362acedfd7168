// SPDX-License-Identifier: Apache-2.0
// A mask that views a temporary matrix would outlive it.
#include "heed/attention.hpp"

heed::Mask mask([[maybe_unused]] const heed::HideMatrix& kept_by_the_caller) {
#ifdef FIXED
  return kept_by_the_caller;
#else
  return heed::look_ahead_mask(4);
#endif
}
