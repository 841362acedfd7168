// SPDX-License-Identifier: Apache-2.0
// A window bounds the pages of a sequence; its positions and its front tokens stay.
#include <gtest/gtest.h>

#include "cache/reading.hpp"
#include "tokens.hpp"

namespace heed::test {
namespace {

KvCache windowed(CacheWindow window, std::int64_t pages) {
  return KvCache(
      {.kv_heads = 1, .capacity = 100000, .dim = 2, .page_size = 16, .pages = pages, .window = window});
}

TEST(Windows, a_sequence_far_longer_than_the_pool_fits) {
  KvCache cache = windowed({.length = 32}, 4);
  for (int t = 0; t < 5000; ++t) append_marked(cache, 0, 1, static_cast<float>(t));
  EXPECT_EQ(cache.length(0), 5000);
  EXPECT_LE(cache.pages_in_use(), 4);
  const std::vector<float> found = marks(cache, 0);
  for (std::size_t t = 5000 - 33; t < 5000; ++t) EXPECT_EQ(found[t], static_cast<float>(t));
  EXPECT_EQ(found[0], 0);
  EXPECT_EQ(found[2000], 0);
}

TEST(Windows, no_page_with_a_front_or_window_token_is_released) {
  for (const std::int64_t front : {0, 1, 15, 16, 17, 40})
    for (const std::int64_t length : {1, 2, 15, 16, 17, 33}) {
      KvCache cache = windowed({length, front}, 12);
      for (std::int64_t t = 0; t < 200; ++t) {
        append_marked(cache, 0, 1, static_cast<float>(t + 1));
        const std::vector<float> found = marks(cache, 0);
        int missing = 0;
        for (std::int64_t i = 0; i <= t; ++i)
          if ((i < front || i > t - length) &&
              found[static_cast<std::size_t>(i)] != static_cast<float>(i + 1))
            ++missing;
        ASSERT_EQ(missing, 0) << "front " << front << ", window " << length << ", token " << t;
      }
      const std::int64_t front_pages = (front + 15) / 16;
      EXPECT_LE(cache.pages_in_use(), front_pages + (length + 1 + 15) / 16 + 1);
    }
}

TEST(Windows, every_query_of_a_chunk_finds_its_keys) {
  for (const std::int64_t chunk : {2, 7, 16, 50}) {
    KvCache cache = windowed({.length = 20}, 8);
    for (std::int64_t begin = 0; begin < 400; begin += chunk) {
      append_marked(cache, 0, chunk, static_cast<float>(begin + 1));
      const std::vector<float> found = marks(cache, 0);
      int missing = 0;
      for (std::int64_t i = std::max<std::int64_t>(begin - 19, 0); i < begin + chunk; ++i)
        if (found[static_cast<std::size_t>(i)] != static_cast<float>(i + 1)) ++missing;
      ASSERT_EQ(missing, 0) << "chunk " << chunk << " at " << begin;
    }
  }
}

TEST(Windows, the_last_append_can_always_be_rolled_back) {
  for (const std::int64_t chunk : {1, 5, 16, 21}) {
    KvCache cache = windowed({.length = 17, .front = 3}, 8);
    for (int i = 0; i < 60; ++i) {
      const Contents before = read(cache, 0);
      const std::int64_t length = cache.length(0);
      append_marked(cache, 0, chunk, 1);
      cache.truncate(0, length);
      if (length > 17) {
        const Contents after = read(cache, 0);
        for (std::size_t t = static_cast<std::size_t>(length - 17); t < static_cast<std::size_t>(length); ++t)
          EXPECT_EQ(after.k[2 * t], before.k[2 * t]) << "token " << t << " of " << length;
      }
      append_marked(cache, 0, chunk, static_cast<float>(i + 2));
    }
  }
}

TEST(Windows, going_back_behind_what_was_released_is_refused) {
  KvCache cache = windowed({.length = 16}, 4);
  for (int t = 0; t < 60; ++t) append_marked(cache, 0, 1, static_cast<float>(t));
  const Seen before(cache);
  const std::string sentence =
      "value: length: 40 of sequence 0 needs its window's tokens from 24 on, and those before 32 are "
      "released";
  EXPECT_EQ(refusal_of([&] { cache.truncate(0, 40); }), sentence);
  EXPECT_EQ(refusal_of([&] { cache.fork(0, 40); }), sentence);
  EXPECT_EQ(Seen(cache), before);
  cache.truncate(0, 48);
  cache.reset(0);
  EXPECT_EQ(cache.pages_in_use(), 0);
}

TEST(Windows, a_sequence_can_go_back_into_its_front) {
  KvCache cache = windowed({.length = 16, .front = 4}, 6);
  for (int t = 0; t < 90; ++t) append_marked(cache, 0, 1, static_cast<float>(t));
  EXPECT_EQ(cache.fork(0, 16), 1);
  cache.truncate(0, 10);
  for (int t = 10; t < 90; ++t) append_marked(cache, 0, 1, static_cast<float>(1000 + t));
  const std::vector<float> found = marks(cache, 0);
  EXPECT_EQ(found[9], 9);
  EXPECT_EQ(found[10], 1010);
  EXPECT_EQ(found[89], 1089);
  EXPECT_EQ(marks(cache, 1)[15], 15);
}

TEST(Windows, kernels_find_zeros_where_pages_were_released) {
  KvCache cache = windowed({.length = 16}, 4);
  for (int t = 0; t < 60; ++t) append_marked(cache, 0, 1, 7);
  const cache::CacheReading reading(cache, {0});
  const PagedSequence sequence = reading.sequence(0);
  EXPECT_EQ(sequence.table[0], sequence.table[1]);
  int others = 0;
  for (std::int64_t i = 0; i < cache::layout_of(cache).page_bytes(); ++i) others += sequence.table[0][i] != 0;
  EXPECT_EQ(others, 0);
}

// Sequence 1 has 8 tokens of a page that sequence 2 goes on in, and that its window lets go of in the same
// append in which 1 writes on, and 0 needs a page for a copy of another.
TEST(Windows, a_page_that_one_sequence_lets_go_of_is_still_read_by_another_that_writes_on) {
  KvCache cache = windowed({.length = 16}, 8);
  append_marked(cache, 0, 8, 1);
  cache.add();
  append_marked(cache, cache.add(), 24, 101);
  cache.release(1);
  ASSERT_EQ(cache.fork(2, 8), 1);
  append_marked(cache, 2, 8, 125);
  cache.fork(0);
  const std::vector<float> before = marks(cache, 1);
  const Tokens token({4, 1, 1, 2});
  const std::int64_t counts[] = {1, 1, 1, 0};
  cache.append(token.view(), token.view(), counts);
  std::vector<float> after = marks(cache, 1);
  after.pop_back();
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace heed::test
