// SPDX-License-Identifier: Apache-2.0
// Threads that are made with the first, second, third ... allocation failing: fewer of them do the work.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "cases/allocations.hpp"
#include "heed/threads.hpp"
#include "threads/pool.hpp"

namespace heed::threads {
namespace {

using cases::allocations;

// Whether 100 tasks each ran once.
bool runs_every_task(int threads) {
  set_num_threads(threads);
  std::atomic<int> ran[100]{};
  parallel_for(100, [&](std::size_t i) { ++ran[i]; });
  for (const std::atomic<int>& once : ran)
    if (once != 1) return false;
  return true;
}

// From a pool of 3 threads, or none, to one of 6.
TEST(FailingAllocations, leave_fewer_threads_that_run_every_task) {
  for (const int before : {1, 3})
    for (const std::int64_t in_a_row : {std::int64_t{1}, std::int64_t{2}, std::int64_t{1} << 40}) {
      int n = 0;
      for (bool failed = true; failed; ++n) {
        ASSERT_TRUE(runs_every_task(2)) << "allocation " << n;
        ASSERT_TRUE(runs_every_task(before)) << "allocation " << n;
        allocations.failures = in_a_row;
        allocations.until_failure = n;
        EXPECT_TRUE(runs_every_task(6)) << "allocation " << n;
        failed = allocations.failures != in_a_row;
        allocations.until_failure = -1;
        EXPECT_TRUE(runs_every_task(6)) << "after allocation " << n;
        EXPECT_TRUE(runs_every_task(before)) << "after allocation " << n;
      }
      EXPECT_GE(n, 6);
    }
}

}  // namespace
}  // namespace heed::threads
