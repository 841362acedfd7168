// SPDX-License-Identifier: Apache-2.0
// Forks share pages until one of them writes, and nothing one does is seen by another.
#include <gtest/gtest.h>

#include "tokens.hpp"

namespace heed::test {
namespace {

using Marks = std::vector<float>;

KvCache small(std::int64_t pages) {
  return KvCache({.kv_heads = 2, .capacity = 64, .dim = 3, .page_size = 16, .pages = pages});
}

TEST(Sharing, a_fork_takes_no_page_until_one_side_writes) {
  KvCache cache = small(4);
  append_marked(cache, 0, 20, 100);
  EXPECT_EQ(cache.pages_in_use(), 2);
  const std::int64_t fork = cache.fork(0);
  EXPECT_EQ(fork, 1);
  EXPECT_EQ(cache.pages_in_use(), 2);
  append_marked(cache, fork, 1, 500);
  EXPECT_EQ(cache.pages_in_use(), 3);
  append_marked(cache, 0, 1, 700);
  EXPECT_EQ(cache.pages_in_use(), 3) << "who is left alone with a page writes to it";
  EXPECT_EQ(marks(cache, 0)[19], 119);
  EXPECT_EQ(marks(cache, 1)[19], 119);
  EXPECT_EQ(marks(cache, 0)[20], 700);
  EXPECT_EQ(marks(cache, 1)[20], 500);
}

TEST(Sharing, a_fork_of_whole_pages_copies_nothing_when_it_grows) {
  KvCache cache = small(4);
  append_marked(cache, 0, 32, 0);
  cache.fork(0);
  append_marked(cache, 1, 1, 50);
  EXPECT_EQ(cache.pages_in_use(), 3);
}

TEST(Sharing, forks_that_grow_in_one_call_leave_one_of_them_the_page) {
  KvCache cache = small(3);
  append_marked(cache, 0, 5, 0);
  cache.fork(0);
  cache.fork(0);
  EXPECT_EQ(cache.pages_in_use(), 1);
  Tokens k({3, 2, 1, 3}), v({3, 2, 1, 3});
  k.fill([](const Shape& at) { return static_cast<float>(100 * at.batch); });
  v.fill([](const Shape&) { return 1.0f; });
  cache.append(k.view(), v.view());
  EXPECT_EQ(cache.pages_in_use(), 3);
  for (std::int64_t n = 0; n < 3; ++n)
    EXPECT_EQ(marks(cache, n), (Marks{0, 1, 2, 3, 4, static_cast<float>(100 * n)}));
}

TEST(Sharing, a_fork_in_the_middle_ignores_what_came_after) {
  KvCache cache = small(4);
  append_marked(cache, 0, 20, 0);
  cache.fork(0, 18);
  append_marked(cache, 1, 1, 500);
  EXPECT_EQ(cache.length(1), 19);
  EXPECT_EQ(marks(cache, 1)[17], 17);
  EXPECT_EQ(marks(cache, 1)[18], 500);
  EXPECT_EQ(marks(cache, 0)[18], 18);
}

TEST(Sharing, truncating_one_leaves_the_other_whole) {
  KvCache cache = small(5);
  append_marked(cache, 0, 40, 0);
  const Contents before = read(cache, 0);
  cache.fork(0);
  cache.truncate(1, 10);
  append_marked(cache, 1, 10, 500);
  cache.release(1);
  EXPECT_EQ(read(cache, 0), before);
  EXPECT_EQ(cache.pages_in_use(), 3);
}

TEST(Sharing, bytes_count_a_shared_page_once) {
  KvCache cache = small(4);
  append_marked(cache, 0, 16, 0);
  const std::int64_t one = cache.bytes();
  EXPECT_EQ(one, 2 * (16 * 3 * 4 + 16 * 16 * 4)) << "two heads: keys, and values as wide as a tile";
  cache.fork(0);
  EXPECT_EQ(cache.bytes(), one);
  EXPECT_EQ(cache.bytes_per_token(), 2 * (3 + 3) * 4);
}

TEST(Sharing, a_released_number_is_the_next_to_be_used) {
  KvCache cache = small(4);
  cache.add();
  cache.add();
  cache.release(1);
  EXPECT_EQ(cache.sequences(), 3);
  EXPECT_EQ(cache.fork(0), 1);
  EXPECT_EQ(cache.add(), 3);
}

}  // namespace
}  // namespace heed::test
