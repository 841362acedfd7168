// SPDX-License-Identifier: Apache-2.0
// HEED_TEST_SELECTION=small: fewer and shorter problems, for runs under a sanitizer.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace heed::cases {

inline bool small_selection() {
#if defined(__EMSCRIPTEN__)
  return true;  // it has no environment
#endif
  const char* chosen = std::getenv("HEED_TEST_SELECTION");
  return chosen != nullptr && std::string_view(chosen) == "small";
}

// The seeds [first, end) of a law's random problems, or every fifth of them.
inline std::vector<std::uint64_t> seeds(std::uint64_t first, std::uint64_t end) {
  std::vector<std::uint64_t> made;
  for (std::uint64_t seed = first; seed < end; seed += small_selection() ? 5 : 1) made.push_back(seed);
  return made;
}

}  // namespace heed::cases
