// SPDX-License-Identifier: Apache-2.0
// How long something takes.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

namespace heed::tool {

template <class Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The median of as many runs as fit into half a second: at least one, at most 25.
template <class Work>
double median_seconds(Work&& work) {
  std::vector<double> runs;
  double total = 0;
  while (runs.empty() || (runs.size() < 25 && total < 0.5)) {
    runs.push_back(seconds_of(work));
    total += runs.back();
  }
  const auto middle = runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2);
  std::nth_element(runs.begin(), middle, runs.end());
  return *middle;
}

}  // namespace heed::tool
