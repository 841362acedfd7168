// SPDX-License-Identifier: Apache-2.0
// What is only read cannot be written.
#include "heed/attention.hpp"

heed::Outputs outputs([[maybe_unused]] const heed::View& read,
                      [[maybe_unused]] const heed::MutableView& written) {
#ifdef FIXED
  return {.out = written};
#else
  return {.out = read};
#endif
}
