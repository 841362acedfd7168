// SPDX-License-Identifier: Apache-2.0
// How much memory a call held at its highest, through operator new.
#pragma once
#include <cstddef>

#include "cases/allocations.hpp"

namespace heed::test {

// Counts from here until it goes out of scope. A request that would exceed `limit` fails as if memory had run
// out.
class AllocationMeter {
 public:
  explicit AllocationMeter(std::size_t limit = std::size_t{1} << 40) {
    cases::allocations.peak_bytes = before_;
    cases::allocations.max_bytes = before_ + static_cast<std::int64_t>(limit);
  }
  ~AllocationMeter() { cases::allocations.max_bytes = before_most_; }
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  // Bytes beyond what was held when counting began.
  std::size_t peak() const { return static_cast<std::size_t>(cases::allocations.peak_bytes - before_); }

 private:
  std::int64_t before_ = cases::allocations.live_bytes, before_most_ = cases::allocations.max_bytes;
};

}  // namespace heed::test
