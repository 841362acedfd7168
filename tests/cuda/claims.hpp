// SPDX-License-Identifier: Apache-2.0
// Claims without GoogleTest: a machine with a GPU may have nothing but a compiler and CUDA.
#pragma once
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace heed::claims {

struct Claim {
  std::string name;
  std::function<void()> body;
};
inline std::vector<Claim>& all() {
  static std::vector<Claim> claims;
  return claims;
}
inline int& failures() {
  static int count = 0;
  return count;
}

struct Registered {
  Registered(const char* name, std::function<void()> body) { all().push_back({name, std::move(body)}); }
};
#define CLAIM(name)                                                     \
  static void name();                                                   \
  static const heed::claims::Registered registered_##name(#name, name); \
  static void name()

template <class... What>
void expect(bool is_so, const What&... what) {
  if (is_so || ++failures() > 60) return;
  std::ostringstream sentence;
  (sentence << ... << what);
  std::cout << "  FAILED: " << sentence.str() << std::endl;
}

// Runs those whose names hold one of the words; all without any.
inline int run(const std::vector<std::string>& words) {
  int failed = 0, ran = 0;
  for (const Claim& claim : all()) {
    bool is_wanted = words.empty();
    for (const std::string& word : words) is_wanted |= claim.name.find(word) != std::string::npos;
    if (!is_wanted) continue;
    const int before = failures();
    std::cout << claim.name << std::endl;
    try {
      claim.body();
    } catch (const std::exception& error) {
      expect(false, "threw: ", error.what());
    }
    ++ran, failed += failures() != before;
  }
  std::cout << ran - failed << " passed, " << failed << " failed" << std::endl;
  return failed == 0 && ran > 0 ? 0 : 1;
}

}  // namespace heed::claims
