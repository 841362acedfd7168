// SPDX-License-Identifier: Apache-2.0
// Memory that may only be read cannot be written through a view.
#include <span>

#include "heed/attention.hpp"

heed::Outputs outputs([[maybe_unused]] std::span<const float> read,
                      [[maybe_unused]] std::span<float> written) {
#ifdef FIXED
  return {.out = {written, {.length = 3}}};
#else
  return {.out = {read, {.length = 3}}};
#endif
}
