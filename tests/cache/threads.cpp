// SPDX-License-Identifier: Apache-2.0
// Readers at once are fine; whoever would change a cache that is in use is refused, and nothing tears.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "cache/reading.hpp"
#include "cache/state.hpp"
#include "tokens.hpp"

namespace heed::test {
namespace {

KvCache with_tokens() {
  KvCache cache({.batch = 2, .kv_heads = 2, .capacity = 4000, .dim = 8, .page_size = 16});
  append_marked(cache, 0, 20, 1);
  return cache;
}

TEST(Threads, every_change_during_a_read_is_refused) {
  KvCache cache = with_tokens();
  const Seen before(cache);
  const std::vector<std::pair<const char*, std::function<void()>>> changes{
      {"append", [&] { cache.append(Tokens({2, 2, 1, 8}).view(), Tokens({2, 2, 1, 8}).view()); }},
      {"append_to", [&] { append_marked(cache, 0, 1, 5); }},
      {"truncate", [&] { cache.truncate(0, 1); }},
      {"reset", [&] { cache.reset(0); }},
      {"reset", [&] { cache.reset(); }},
      {"fork", [&] { cache.fork(0); }},
      {"release", [&] { cache.release(0); }},
      {"add", [&] { cache.add(); }}};
  {
    const cache::CacheReading reading(cache), another(cache);
    for (const auto& [name, change] : changes)
      EXPECT_EQ(refusal_of(change),
                std::string("busy: ") + name + ": the cache is being read by another call");
    EXPECT_EQ(Seen(cache), before) << "reading goes on";
    std::string refused;
    std::thread([&] { refused = refusal_of([&] { append_marked(cache, 0, 1, 5); }); }).join();
    EXPECT_EQ(refused, "busy: append_to: the cache is being read by another call");
  }
  append_marked(cache, 0, 1, 5);
  EXPECT_EQ(cache.length(0), 21);
}

TEST(Threads, every_read_and_change_during_a_change_is_refused) {
  KvCache cache = with_tokens();
  {
    const cache::Writing writing(cache::Access::state(cache).use, "append");
    const std::string changed = ": the cache is being changed by another call";
    EXPECT_EQ(refusal_of([&] { read(cache, 0); }), "busy: length" + changed);
    EXPECT_EQ(refusal_of([&] { cache.read(0, {}, {}); }), "busy: read" + changed);
    EXPECT_EQ(refusal_of([&] { cache.save("nowhere"); }), "busy: save" + changed);
    EXPECT_EQ(refusal_of([&] { const cache::CacheReading reading(cache); }), "busy: attention" + changed);
    EXPECT_EQ(refusal_of([&] { static_cast<void>(cache.bytes()); }), "busy: pages_in_use" + changed);
    EXPECT_EQ(refusal_of([&] { static_cast<void>(cache.sequences()); }), "busy: sequences" + changed);
    EXPECT_EQ(refusal_of([&] { static_cast<void>(cache.lengths()); }), "busy: lengths" + changed);
    EXPECT_EQ(refusal_of([&] { cache.truncate(0, 1); }), "busy: truncate" + changed);
  }
  EXPECT_EQ(marks(cache, 0)[19], 20);
}

TEST(Threads, a_writer_becomes_a_reader_and_a_writer_again_with_nobody_in_between) {
  KvCache cache = with_tokens();
  cache::CacheUse& use = cache::Access::state(cache).use;
  use.begin_writing("append");
  use.writer_becomes_reader();
  EXPECT_EQ(refusal_of([&] { append_marked(cache, 0, 1, 5); }),
            "busy: append_to: the cache is being read by another call");
  EXPECT_EQ(cache.length(0), 20);
  use.begin_reading("attention");
  std::thread writer([&] { use.reader_becomes_writer(); });
  while (refusal_of([&] { static_cast<void>(cache.length(0)); }) == "nothing") std::this_thread::yield();
  EXPECT_EQ(refusal_of([&] { append_marked(cache, 0, 1, 5); }),
            "busy: append_to: the cache is being changed by another call");
  use.end_reading();
  writer.join();
  EXPECT_EQ(refusal_of([&] { read(cache, 0); }), "busy: length: the cache is being changed by another call");
  use.end_writing();
  append_marked(cache, 0, 1, 5);
  EXPECT_EQ(cache.length(0), 21);
}

TEST(Threads, many_readers_see_the_same) {
  const KvCache cache = with_tokens();
  const Contents expected = read(cache, 0);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) {
        const cache::CacheReading reading(cache);
        wrong +=
            !(read(cache, 0) == expected) || reading.sequence(0).length != 20 || cache.pages_in_use() != 2;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Both sides are refused at times; whatever succeeds is whole.
TEST(Threads, readers_and_writers_at_once_never_tear) {
  KvCache cache = with_tokens();
  std::atomic<bool> is_done{false};
  std::atomic<int> torn{0}, appended{0};
  const auto write = [&] {
    for (int n = 0; n < 1000; ++n)
      if (refusal_of([&] { append_marked(cache, 1, 1, 9); }) == "nothing") ++appended;
  };
  const auto look = [&] {
    std::vector<float> k(2 * 20 * 8), v(2 * 20 * 8);
    const Shape shape{1, 2, 20, 8};
    while (!is_done) {
      const std::string refused = refusal_of([&] {
        cache.read(0, {k, shape}, {v, shape});
        torn += k[0] != 1 || v[0] != -1 || k[19 * 8] != 20;
      });
      torn += refused != "nothing" && refused != "busy: read: the cache is being changed by another call";
    }
  };
  std::thread reader(look);
  std::thread first(write), second(write);
  first.join();
  second.join();
  is_done = true;
  reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(cache.length(1), appended);
}

}  // namespace
}  // namespace heed::test
