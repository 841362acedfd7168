// SPDX-License-Identifier: Apache-2.0
// Claims without GoogleTest: a machine with a GPU may have nothing but a compiler and CUDA.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
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
  std::cout << "\n  FAILED: " << sentence.str() << std::endl;
}

// Whether a claim is asked for: its name holds one of the words, or there are none.
inline bool is_wanted(const Claim& claim, const std::vector<std::string>& words) {
  const auto holds = [&](const std::string& word) { return claim.name.find(word) != std::string::npos; };
  return words.empty() || std::any_of(words.begin(), words.end(), holds);
}

// Runs the claims asked for. HEED_CLAIMS=2/8 takes every eighth of them from the third on (counted from 0):
// eight programs beside each other take a quarter of the time, since a claim mostly waits for the reference.
inline int run(const std::vector<std::string>& words) {
  const char* said = std::getenv("HEED_CLAIMS");
  const std::string part = said ? said : "0/1";
  const std::size_t slash = part.find('/');
  const std::size_t first = std::stoul(part), stride = std::stoul(part.substr(slash + 1));
  int failed = 0, ran = 0;
  std::size_t wanted = 0;
  for (const Claim& claim : all()) {
    if (!is_wanted(claim, words) || wanted++ % stride != first) continue;
    const int before = failures();
    std::cout << claim.name << std::flush;
    const auto begin = std::chrono::steady_clock::now();
    try {
      claim.body();
    } catch (const std::exception& error) {
      expect(false, "threw: ", error.what());
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << " (" << static_cast<double>(std::lround(10 * seconds.count())) / 10 << " s)" << std::endl;
    ++ran, failed += failures() != before;
  }
  std::cout << ran - failed << " passed, " << failed << " failed" << std::endl;
  return failed == 0 && ran > 0 ? 0 : 1;
}

}  // namespace heed::claims
