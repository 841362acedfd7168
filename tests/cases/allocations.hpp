// SPDX-License-Identifier: Apache-2.0
// operator new and delete of every test program that has allocations.cpp among its sources: they count, and
// fail where they are told to.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

namespace heed::cases {

struct Allocations {
  std::atomic<std::int64_t> count{0}, bytes{0};                 // ever made
  std::atomic<std::int64_t> live{0}, live_bytes{0};             // not freed yet
  std::atomic<std::int64_t> live_aligned{0}, aligned_bytes{0};  // of those, on 64-byte lines
  std::atomic<std::int64_t> peak_bytes{0};                      // of those; may be set lower
  std::atomic<std::int64_t> max_bytes = std::int64_t{1} << 40;  // what would make more of them live fails

  // How many still succeed, before `failures` fail one after another; negative: all do.
  std::atomic<std::int64_t> until_failure{-1}, failures{1};

  // What happens at the one before which so many have been made; negative: nothing does.
  std::atomic<std::int64_t> until_intrusion{-1};
  const std::function<void()>* intrusion = nullptr;
};

extern Allocations allocations;

}  // namespace heed::cases
