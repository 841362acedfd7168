// SPDX-License-Identifier: Apache-2.0
// The list that Options::masks is: a std::vector's answers, and no memory while it is short.
#include "heed/few.hpp"

#include <gtest/gtest.h>

#include <new>
#include <span>
#include <utility>

#include "cases/allocations.hpp"

namespace heed::cases {
namespace {

using Numbers = Few<int, 4>;

Numbers count_to(int n) {
  Numbers numbers;
  for (int i = 0; i < n; ++i) numbers.push_back(i);
  return numbers;
}

bool counts_to(const Numbers& numbers, int n) {
  int expected = 0;
  for (const int number : numbers)
    if (number != expected++) return false;
  return expected == n;
}

constexpr int some_lengths[] = {0, 1, 4, 5, 8, 9, 30};

TEST(Few, four_ask_for_no_memory_and_all_of_it_is_given_back) {
  const std::int64_t made = allocations.count, live = allocations.live;
  EXPECT_TRUE(counts_to(count_to(4), 4));
  EXPECT_EQ(allocations.count, made);
  EXPECT_TRUE(counts_to(count_to(5), 5));
  EXPECT_EQ(allocations.count, made + 1);
  EXPECT_EQ(allocations.live, live);
}

TEST(Few, any_length_is_copied_and_moved_onto_any_other) {
  const std::int64_t live = allocations.live;
  for (const int from : some_lengths)
    for (const int onto : some_lengths) {
      const Numbers given = count_to(from);
      Numbers copied = count_to(onto), moved = count_to(onto), source = given;
      copied = given;
      moved = std::move(source);
      EXPECT_TRUE(counts_to(copied, from) && counts_to(moved, from)) << from << " onto " << onto;
      EXPECT_TRUE(source.empty());
      source.push_back(0);  // what was moved from goes on
      EXPECT_TRUE(counts_to(source, 1) && counts_to(given, from));
      Numbers& itself = copied;
      copied = itself;
      EXPECT_TRUE(counts_to(copied, from));
    }
  EXPECT_EQ(allocations.live, live);
}

TEST(Few, what_is_taken_from_the_list_itself_stays_what_it_was) {
  for (const int n : {1, 4, 8, 30}) {
    Numbers numbers = count_to(n);
    for (int more = 0; more < 40; ++more) numbers.push_back(numbers[static_cast<std::size_t>(n) - 1]);
    EXPECT_EQ(numbers.size(), static_cast<std::size_t>(n) + 40);
    EXPECT_EQ(numbers[numbers.size() - 1], n - 1);
    numbers = std::span<const int>(numbers).first(static_cast<std::size_t>(n));
    EXPECT_TRUE(counts_to(numbers, n));
  }
}

TEST(Few, what_resize_adds_is_new) {
  Numbers numbers = count_to(9);
  numbers.resize(2);
  numbers.resize(7);
  for (std::size_t n = 2; n < 7; ++n) EXPECT_EQ(numbers[n], 0);
  EXPECT_EQ(numbers[1], 1);
}

// A list of masks that lost them would be a call that sees everything.
TEST(Few, what_memory_was_missing_for_has_not_happened) {
  for (const int n : some_lengths) {
    Numbers numbers = count_to(n);
    const Numbers longer = count_to(40);
    allocations.until_failure = 0;
    EXPECT_THROW(numbers = longer, std::bad_alloc);
    EXPECT_TRUE(counts_to(numbers, n)) << n;
    allocations.until_failure = 0;
    EXPECT_THROW(numbers.resize(100), std::bad_alloc);
    EXPECT_TRUE(counts_to(numbers, n)) << n;
  }
  Numbers full = count_to(8);
  allocations.until_failure = 0;
  EXPECT_THROW(full.push_back(8), std::bad_alloc);
  EXPECT_TRUE(counts_to(full, 8));
}

}  // namespace
}  // namespace heed::cases
