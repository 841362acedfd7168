// SPDX-License-Identifier: Apache-2.0
// Four extents are no strides.
#include "heed/attention.hpp"

heed::Inputs inputs(const float* q, const heed::Shape& shape) {
#ifdef FIXED
  return {.q = {q, shape}};
#else
  return {.q = {q, shape, shape}};
#endif
}
