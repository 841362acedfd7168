// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most, measured: the denominators of every percentage `heed bench` prints.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "machine.hpp"

namespace heed::tool {

// Operations or bytes per second.
struct Rate {
  double one_thread = 0, all_threads = 0;
  std::string instruction{};  // empty for bandwidth
  // What all threads do at this moment, in a burst of so many seconds. None for bandwidth: a burst would
  // empty the caches that a case has warmed.
  std::function<double(double seconds)> now{};
};

struct Limits {
  int threads = 1;
  Caches caches{};
  Rate fp32{};
  std::optional<Rate> bf16{}, int8{};
  std::optional<Rate> l2{}, l3{};  // none where the machine has no such cache or does not say its size
  Rate dram{};
};

// The best of many short bursts, with as many threads as heed uses: other programs only ever slow a burst.
Limits measure_limits();

}  // namespace heed::tool
