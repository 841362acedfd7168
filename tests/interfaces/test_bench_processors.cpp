// SPDX-License-Identifier: Apache-2.0
// `heed bench` lets a burst begin on the processors that a case had.
#include <gtest/gtest.h>

#include "machine.hpp"

#ifdef __linux__
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace heed::tool {
namespace {

cpu_set_t allowed_processors() {
  cpu_set_t allowed;
  EXPECT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  return allowed;
}

std::vector<int> processors_of(const cpu_set_t& allowed) {
  std::vector<int> found;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &allowed)) found.push_back(processor);
  return found;
}

void stay_on(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

// What is found while two other threads are on a processor.
std::vector<int> found_with_two_on(int processor) {
  std::atomic<int> there = 0;
  std::atomic<bool> is_over = false;
  const auto stay = [&] {
    stay_on(processor);
    ++there;
    while (!is_over) std::this_thread::yield();
  };
  std::thread one(stay), other(stay);
  while (there < 2) std::this_thread::yield();
  const std::vector<int> found = processors_of_others();
  is_over = true;
  one.join(), other.join();
  return found;
}

TEST(Processors, of_other_threads_are_found_once_but_not_the_callers_own) {
  const cpu_set_t before = allowed_processors();
  for (const int own : processors_of(before)) {
    stay_on(own);
    for (const int processor : processors_of(before)) {
      const auto times = std::ranges::count(found_with_two_on(processor), processor);
      EXPECT_EQ(times, processor == own ? 0 : 1) << processor << ", own " << own;
    }
    sched_setaffinity(0, sizeof before, &before);
  }
}

// The system may move a thread on at once, so it has several tries.
TEST(Processors, a_thread_begins_where_it_is_told_and_may_leave) {
  const cpu_set_t before = allowed_processors();
  for (const int processor : processors_of(before)) {
    bool was_there = false;
    for (int tries = 0; tries < 50 && !was_there; ++tries) {
      begin_on(processor);
      was_there = sched_getcpu() == processor;
    }
    EXPECT_TRUE(was_there) << processor;
  }
  const cpu_set_t after = allowed_processors();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(Processors, nobody_begins_where_it_must_not_be) {
  const cpu_set_t before = allowed_processors();
  const int here = sched_getcpu();
  stay_on(here);
  const cpu_set_t one = allowed_processors();
  for (int processor = -1; processor <= CPU_SETSIZE; ++processor) begin_on(processor);
  EXPECT_EQ(sched_getcpu(), here);
  const cpu_set_t after = allowed_processors();
  EXPECT_TRUE(CPU_EQUAL(&one, &after));
  sched_setaffinity(0, sizeof before, &before);
}

}  // namespace
}  // namespace heed::tool
#endif
