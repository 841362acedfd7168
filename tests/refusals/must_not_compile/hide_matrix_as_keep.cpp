// SPDX-License-Identifier: Apache-2.0
// A matrix that hides never keeps.
#include "heed/attention.hpp"

heed::Keep opposite(const heed::HideMatrix& matrix) {
#ifdef FIXED
  return {static_cast<heed::Hide>(matrix).where};
#else
  return matrix;
#endif
}
