// SPDX-License-Identifier: Apache-2.0
// Extents come before strides, and neither is the other.
#include "heed/attention.hpp"

heed::Inputs inputs(const float* q, const heed::Shape& shape) {
#ifdef FIXED
  return {.q = {q, shape, bshd(shape)}};
#else
  return {.q = {q, bshd(shape), shape}};
#endif
}
