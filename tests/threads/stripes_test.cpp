// SPDX-License-Identifier: Apache-2.0
// Tasks of the same rows: each taken once, one after another by whoever began with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

struct StripeOf {
  std::int64_t first_query, queries, heads;
};

class Taken {
 public:
  explicit Taken(const std::vector<StripeOf>& wanted) {
    for (const StripeOf& s : wanted)
      for (std::int64_t h = 0; h < s.heads; ++h)
        tasks.push_back({s.queries * 10, {0, h, s.first_query, s.queries}});
    room = std::vector<Stripes::Stripe>(tasks.size());
  }
  Stripes stripes(const SharedMask& mask = {}) { return {tasks, mask, room}; }

  std::vector<QueryTask> tasks;

 private:
  std::vector<Stripes::Stripe> room;
};

TEST(Stripes, every_task_is_taken_once_whoever_takes_it) {
  constexpr int threads = 4;
  for (int round = 0; round < 50; ++round) {
    Taken all({{0, 64, 7}, {64, 64, 5}, {128, 64, 1}, {192, 10, 6}});
    const Stripes stripes = all.stripes();
    std::vector<std::atomic<int>> times(all.tasks.size());
    std::atomic<std::size_t> left{all.tasks.size()};
    const auto take_some = [&] {
      std::int64_t mine = Stripes::none;
      for (std::size_t now = left; now > 0;)
        if (left.compare_exchange_weak(now, now - 1))
          ++times[static_cast<std::size_t>(stripes.take(mine))], now = left;
    };
    std::vector<std::thread> others;
    for (int n = 0; n < threads; ++n) others.emplace_back(take_some);
    for (std::thread& other : others) other.join();
    EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](const auto& n) { return n == 1; }));
  }
}

TEST(Stripes, whoever_began_with_some_rows_has_all_their_tasks_while_others_are_elsewhere) {
  Taken all({{0, 64, 6}, {64, 64, 6}});
  const Stripes stripes = all.stripes();
  std::int64_t a = Stripes::none, z = Stripes::none;
  for (int n = 0; n < 6; ++n) {
    const Rows of_a = all.tasks[static_cast<std::size_t>(stripes.take(a))].rows,
               of_z = all.tasks[static_cast<std::size_t>(stripes.take(z))].rows;
    EXPECT_EQ(of_a.first_query, 0);
    EXPECT_EQ(of_z.first_query, 64);
    EXPECT_NE(of_a.kv_head, of_z.kv_head);  // they would wait for the same keys
  }
}

TEST(Stripes, whoever_has_none_left_goes_where_most_are_and_to_short_ones_last) {
  Taken all({{0, 64, 1}, {64, 64, 2}, {128, 64, 4}, {192, 10, 40}});
  const Stripes stripes = all.stripes();
  const std::vector<std::int64_t> expected{128, 64, 0, 192};
  for (const std::int64_t first_query : expected) {
    std::int64_t mine = Stripes::none;
    const auto take = [&] {
      return all.tasks[static_cast<std::size_t>(stripes.take(mine))].rows.first_query;
    };
    const auto count = std::count_if(all.tasks.begin(), all.tasks.end(), [&](const QueryTask& task) {
      return task.rows.first_query == first_query;
    });
    for (auto n = count; n > 0; --n) EXPECT_EQ(take(), first_query);
  }
}

TEST(Stripes, neighbours_of_other_batch_entries_are_no_stripe_unless_they_share_a_mask) {
  Taken all({{0, 64, 2}, {0, 64, 2}});
  for (std::size_t n = 2; n < 4; ++n) all.tasks[n].rows.batch_entry = 1;
  for (const bool is_shared : {false, true}) {
    SharedMask mask;
    mask.is_of_batch = is_shared;
    const Stripes stripes = all.stripes(mask);
    std::int64_t a = Stripes::none, z = Stripes::none;
    stripes.take(a), stripes.take(z);
    EXPECT_EQ(a == z, is_shared);
  }
}

// Whose tasks are cut entry by entry.
TEST(Stripes, entries_that_share_a_mask_are_sorted_by_its_rows) {
  std::vector<QueryTask> tasks;
  for (std::int64_t b = 0; b < 3; ++b)
    for (const std::int64_t first : {0, 64})
      for (std::int64_t h = 0; h < 2; ++h) tasks.push_back({640, {b, h, first, 64}});
  SharedMask mask;
  const auto changes = [&] {  // of the rows, from one task to the next
    std::sort(tasks.begin(), tasks.end(), RunsBefore{mask});
    int count = 0;
    for (std::size_t n = 1; n < tasks.size(); ++n)
      count += tasks[n].rows.first_query != tasks[n - 1].rows.first_query;
    return count;
  };
  EXPECT_EQ(changes(), 5);
  mask.is_of_batch = true;
  EXPECT_EQ(changes(), 1);
}

}  // namespace
}  // namespace heed::cpu
