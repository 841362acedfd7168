// SPDX-License-Identifier: Apache-2.0
// Threads that are made with the first, second, third ... allocation failing: fewer of them do the work.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "heed/threads.hpp"
#include "threads/pool.hpp"

namespace {

std::atomic<std::int64_t> until_failure{-1};  // allocations that still succeed; negative: all
std::atomic<std::int64_t> failures{1};        // how many fail then, one after the other

void* counted(std::size_t bytes, std::size_t alignment) {
  if (until_failure >= 0 && until_failure-- <= 0) {
    if (--failures > 0) until_failure = 0;
    throw std::bad_alloc();
  }
  void* block = nullptr;
  if (posix_memalign(&block, alignment, bytes) != 0) throw std::bad_alloc();
  return block;
}
// Not inline: where the compiler sees free() it warns of memory that new allocated.
[[gnu::noinline]] void release(void* p) noexcept { std::free(p); }

}  // namespace

void* operator new(std::size_t n) { return counted(n, 16); }
void* operator new[](std::size_t n) { return counted(n, 16); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  try {
    return counted(n, 16);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t n, std::align_val_t a) { return counted(n, static_cast<std::size_t>(a)); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  try {
    return counted(n, static_cast<std::size_t>(a));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { release(p); }

namespace heed::threads {
namespace {

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
        failures = in_a_row;
        until_failure = n;
        EXPECT_TRUE(runs_every_task(6)) << "allocation " << n;
        failed = failures != in_a_row;
        until_failure = -1;
        EXPECT_TRUE(runs_every_task(6)) << "after allocation " << n;
        EXPECT_TRUE(runs_every_task(before)) << "after allocation " << n;
      }
      EXPECT_GE(n, 6);
    }
}

}  // namespace
}  // namespace heed::threads
