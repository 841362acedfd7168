// SPDX-License-Identifier: Apache-2.0
// HEED_TEST_SELECTION=small: fewer and shorter problems, for runs under a sanitizer.
#pragma once
#include <cstdlib>
#include <string_view>

namespace heed::cases {

inline bool small_selection() {
  const char* chosen = std::getenv("HEED_TEST_SELECTION");
  return chosen != nullptr && std::string_view(chosen) == "small";
}

}  // namespace heed::cases
