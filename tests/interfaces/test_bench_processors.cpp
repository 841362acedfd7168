// SPDX-License-Identifier: Apache-2.0
// `heed bench` lets a burst begin on the processors that a case had.
#include <gtest/gtest.h>

#include "bench/processors.hpp"

#ifdef __linux__
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace heed::tool {
namespace {

cpu_set_t allowed_processors() {
  cpu_set_t allowed;
  EXPECT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  return allowed;
}

template <class Do>
void for_each_allowed(const Do& body) {
  const cpu_set_t allowed = allowed_processors();
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &allowed)) body(processor);
}

TEST(Processors, of_other_threads_are_found) {
  const std::size_t before = processors_of_others().size();  // a sanitizer may have a thread of its own
  for_each_allowed([&](int processor) {
    std::atomic<bool> is_there = false, is_over = false;
    std::thread other([&] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(processor, &one);
      EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
      is_there = true;
      while (!is_over) std::this_thread::yield();
    });
    while (!is_there) std::this_thread::yield();
    const std::vector<int> found = processors_of_others();
    is_over = true;
    other.join();
    EXPECT_EQ(found.size(), before + 1);
    EXPECT_GE(std::ranges::count(found, processor), 1);
    // A thread that was joined may still be on its way out, and would be counted beside the next one.
    while (processors_of_others().size() > before) std::this_thread::yield();
  });
}

// The system may move a thread on at once, so it has several tries.
TEST(Processors, a_thread_begins_where_it_is_told_and_may_leave) {
  const cpu_set_t before = allowed_processors();
  for_each_allowed([](int processor) {
    bool was_there = false;
    for (int tries = 0; tries < 50 && !was_there; ++tries) {
      begin_on(processor);
      was_there = sched_getcpu() == processor;
    }
    EXPECT_TRUE(was_there) << processor;
  });
  const cpu_set_t after = allowed_processors();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(Processors, nobody_begins_where_it_must_not_be) {
  const cpu_set_t before = allowed_processors();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const int here = sched_getcpu();
  for (int processor = -1; processor <= CPU_SETSIZE; ++processor) begin_on(processor);
  EXPECT_EQ(sched_getcpu(), here);
  const cpu_set_t after = allowed_processors();
  EXPECT_TRUE(CPU_EQUAL(&one, &after));
  sched_setaffinity(0, sizeof before, &before);
}

}  // namespace
}  // namespace heed::tool
#endif
