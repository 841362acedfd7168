// SPDX-License-Identifier: Apache-2.0
// How much memory a call held at its highest, through operator new.
#pragma once
#include <cstddef>

namespace heed::test {

// Counts from here until it goes out of scope. A request that would exceed `limit` fails as if memory had run
// out.
class AllocationMeter {
 public:
  explicit AllocationMeter(std::size_t limit = ~std::size_t{0});
  ~AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  std::size_t peak() const;  // bytes beyond what was held when counting began

 private:
  std::size_t before_;
};

}  // namespace heed::test
