// SPDX-License-Identifier: Apache-2.0
// A number alone does not say whether it drops or keeps.
#include "heed/attention.hpp"

heed::Options options() {
#ifdef FIXED
  return {.dropout = heed::Dropout{.drop_probability = 0.1f}};
#else
  return {.dropout = 0.1f};
#endif
}
