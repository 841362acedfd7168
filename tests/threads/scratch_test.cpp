// SPDX-License-Identifier: Apache-2.0
// The memory of tasks: each that runs has its own, and a thread has again what it had before.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

constexpr std::int64_t floats = 40;  // not a whole number of lines

// How many of a task's floats another task has changed.
std::ptrdiff_t changed(const Scratch::Lease& lease, float mark) {
  return floats - std::count(lease.floats(), lease.floats() + floats, mark);
}

TEST(Scratch, is_never_leased_to_two_tasks_at_once_even_if_more_run_than_it_has_slots) {
  Scratch scratch(3, floats);
  const auto work = [&](float mark, std::ptrdiff_t& wrong) {
    for (int round = 0; round < 2000; ++round) {
      const Scratch::Lease lease(scratch);
      std::fill_n(lease.floats(), floats, mark);
      std::this_thread::yield();
      wrong += changed(lease, mark);
    }
  };
  std::vector<std::ptrdiff_t> wrong(5);
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < wrong.size(); ++n)
    threads.emplace_back(work, static_cast<float>(n), std::ref(wrong[n]));
  for (std::thread& thread : threads) thread.join();
  for (const std::ptrdiff_t of_thread : wrong) EXPECT_EQ(of_thread, 0);
}

TEST(Scratch, of_a_task_lies_apart_from_that_of_the_others_and_from_what_is_in_front) {
  Scratch scratch(4, floats, 100);
  std::fill_n(scratch.front<char>(), 100, 'f');
  std::optional<Scratch::Lease> leases[4];
  for (std::size_t n = 0; n < 4; ++n) {
    leases[n].emplace(scratch);
    std::fill_n(leases[n]->floats(), floats, static_cast<float>(n));
  }
  for (std::size_t n = 0; n < 4; ++n) EXPECT_EQ(changed(*leases[n], static_cast<float>(n)), 0) << n;
  EXPECT_EQ(std::count(scratch.front<char>(), scratch.front<char>() + 100, 'f'), 100);
}

// Where the slot lies that a lease has.
std::ptrdiff_t place(const Scratch& scratch, const Scratch::Lease& lease) {
  return lease.floats() - scratch.front<float>();
}

TEST(Scratch, of_a_thread_lies_where_it_did_last_in_this_call_and_in_the_next) {
  Scratch scratch(4, floats), next(4, floats);
  std::ptrdiff_t had = 0;
  {
    const Scratch::Lease first(scratch), second(scratch);
    had = place(scratch, second);
    ASSERT_NE(had, place(scratch, first));
  }
  EXPECT_EQ(place(scratch, Scratch::Lease(scratch)), had);
  EXPECT_EQ(place(next, Scratch::Lease(next)), had);
}

}  // namespace
}  // namespace heed::cpu
