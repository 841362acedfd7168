// SPDX-License-Identifier: Apache-2.0
// Every allocation of this program is counted and can be made to fail: a cache is then as it was and leaks
// nothing; appending does the same little work however long the sequence is; a fork costs its table.
#include <gtest/gtest.h>

#include <functional>

#include "cache/reading.hpp"
#include "cases/allocations.hpp"
#include "files/scratch_folder.hpp"
#include "heed/check.hpp"
#include "tokens.hpp"

namespace heed::test {
namespace {

using cases::allocations;

const KvCacheConfig everything{.batch = 2,
                               .kv_heads = 2,
                               .capacity = 1000,
                               .dim = 4,
                               .type = CacheType::int8,
                               .page_size = 16,
                               .pages = 6,
                               .window = CacheWindow{.length = 20, .front = 2},
                               .rotary = CacheRotary{}};

// The next append to sequence 0 releases a page of the window, writes to the middle of a page, and with 20
// tokens needs a longer table.
KvCache used() {
  KvCache cache(everything);
  for (int t = 0; t < 180; ++t) append_marked(cache, 0, 1, static_cast<float>(t + 1));
  cache.truncate(0, 178);
  append_marked(cache, 0, 10, 5);
  cache.release(1);
  return cache;
}

// The call with its allocation number n failing. False when it needs no more than it gets.
template <class Call>
bool fails(int n, const Call& call) {
  bool failed = false;
  allocations.until_failure = n;
  try {
    call();
  } catch (const std::bad_alloc&) {
    failed = true;
  } catch (const Error& error) {
    failed = error.code == Error::capacity;
  }
  allocations.until_failure = -1;
  return failed;
}

// Makes a cache and changes it with the first, second, third ... allocation of the change failing, until none
// does. After a failure the cache is as it was, and the same change then comes out as if nothing had
// happened. Returns how many failed.
int fail_each(const std::function<KvCache()>& make, const std::function<void(KvCache&)>& change) {
  KvCache changed = make();
  change(changed);
  const Seen after(changed);
  for (int n = 0;; ++n) {
    const std::int64_t before = allocations.live_bytes;
    bool failed = false;
    {
      KvCache cache = make();
      const Seen seen(cache);
      failed = fails(n, [&] { change(cache); });
      if (failed) {
        EXPECT_EQ(Seen(cache), seen) << "allocation " << n;
        change(cache);
      }
      EXPECT_EQ(Seen(cache), after) << "allocation " << n;
    }
    EXPECT_EQ(allocations.live_bytes, before) << "allocation " << n << " failed and something leaked";
    if (!failed) return n;
  }
}

class Failing : public ScratchFolder {};

TEST_F(Failing, construction_leaks_nothing) {
  {
    const KvCache first(everything);
  }  // makes the list of backends, which lives as long as the process
  int n = 0;
  for (const std::int64_t before = allocations.live_bytes; fails(n, [] { const KvCache cache(everything); });
       ++n)
    EXPECT_EQ(allocations.live_bytes, before) << "allocation " << n;
  EXPECT_GE(n, 5);
}

TEST_F(Failing, append_leaves_the_cache_as_it_was) {
  const Tokens k = marked(everything, 20, 4, 1), v = marked(everything, 20, 4, 2);
  EXPECT_GE(fail_each(used, [&](KvCache& cache) { cache.append_to(0, k.view(), v.view()); }), 3);
}

TEST_F(Failing, append_to_all_leaves_every_sequence_as_it_was) {
  Tokens tokens({2, 2, 1, 4});
  tokens.fill([](const Shape&) { return 1.0f; });
  const auto forked = [] {
    KvCache cache = used();
    cache.fork(0);
    return cache;
  };
  EXPECT_GE(fail_each(forked, [&](KvCache& cache) { cache.append(tokens.view(), tokens.view()); }), 4);
}

TEST_F(Failing, fork_and_add_leave_the_cache_as_it_was) {
  const auto full = [] {  // a seventeenth sequence needs room of its own in the list
    KvCache cache = used();
    while (cache.sequences() < 16) cache.add();
    return cache;
  };
  EXPECT_GE(fail_each(full, [](KvCache& cache) { cache.fork(0); }), 2);
  EXPECT_GE(fail_each(full, [](KvCache& cache) { cache.add(); }), 2);
  const auto with_free_number = [] {
    KvCache cache({.kv_heads = 1,
                   .capacity = 1000,
                   .dim = 1,
                   .page_size = 16,
                   .pages = 2,
                   .window = CacheWindow{.length = 1}});
    cache.release(cache.add());
    for (int t = 0; t < 200; ++t) append_marked(cache, 0, 1, 1);
    return cache;
  };
  EXPECT_GE(fail_each(with_free_number, [](KvCache& cache) { cache.fork(0); }), 1);
}

TEST_F(Failing, what_gives_room_back_needs_none) {
  EXPECT_EQ(fail_each(used, [](KvCache& cache) { cache.truncate(0, 187); }), 0);
  EXPECT_EQ(fail_each(used, [](KvCache& cache) { cache.reset(); }), 0);
  EXPECT_EQ(fail_each(used, [](KvCache& cache) { cache.release(0); }), 0);
}

TEST_F(Failing, read_writes_nothing) {
  KvCacheConfig config = everything;
  config.rotary->when = CacheRotary::When::read;
  KvCache cache(config);
  append_marked(cache, 0, 30, 1);
  const Shape shape{1, 2, 30, 4};
  std::vector<float> k(2 * 30 * 4, 9), v(2 * 30 * 4, 9);
  const std::vector<float> nines = k;
  const MutableView into_k{k, shape};
  const MutableView into_v{v, shape};
  int n = 0;
  for (; fails(n, [&] { cache.read(0, into_k, into_v); }); ++n) EXPECT_TRUE(k == nines && v == nines) << n;
  EXPECT_GE(n, 3);
}

TEST_F(Failing, save_leaves_the_file_that_was_there) {
  const KvCache cache = used();
  const Seen before(cache);
  put_file("cache", "what was there");
  int n = 0;
  for (const std::int64_t held = allocations.live_bytes; fails(n, [&] { cache.save("cache"); }); ++n) {
    EXPECT_EQ(allocations.live_bytes, held) << "allocation " << n;
    EXPECT_EQ(file_bytes("cache"), "what was there") << "allocation " << n;
    EXPECT_EQ(names_in("."), std::set<std::string>{"cache"}) << "allocation " << n;
  }
  EXPECT_GE(n, 10);
  EXPECT_EQ(Seen(KvCache::load("cache")), before);
}

TEST_F(Failing, load_leaks_nothing) {
  used().save("cache");
  int n = 0;
  for (const std::int64_t before = allocations.live_bytes; fails(n, [] { KvCache::load("cache"); }); ++n)
    EXPECT_EQ(allocations.live_bytes, before) << "allocation " << n;
  EXPECT_GE(n, 10);
}

// Most of what it allocates is a row's, on the pool's threads.
TEST_F(Failing, a_check_throws_to_its_caller_and_leaks_nothing) {
  KvCache cache(everything);
  append_marked(cache, 0, 30, 1);
  append_marked(cache, 1, 30, 2);
  std::vector<float> q(2 * 2 * 8 * 4, 0.5f), out(q.size());
  const Shape shape{2, 2, 8, 4};
  const Inputs inputs{.q = {q, shape}, .cache = &cache};
  const Outputs outputs{.out = {out, shape}};
  attention(inputs, outputs);
  const auto check_all = [&] { EXPECT_EQ(check(inputs, outputs).beyond_bound, 0); };
  check_all();  // the pool has its threads from here on
  int n = 0;
  for (const std::int64_t before = allocations.live_bytes; fails(n, check_all); ++n)
    EXPECT_EQ(allocations.live_bytes, before) << "allocation " << n;
  EXPECT_GE(n, 32);
}

TEST_F(Failing, a_pool_that_no_memory_holds_is_refused_with_its_size) {
  KvCacheConfig config = everything;
  config.dim = config.capacity = 1 << 24;
  config.page_size = 1 << 20;
  EXPECT_EQ(refusal_of([&] { const KvCache cache(config); }),
            "capacity: config.pages: no memory for 6 pages of 70368760954880 bytes");
}

TEST(Work, a_hundred_thousand_appends_allocate_nothing_and_take_a_page_when_one_is_full) {
  constexpr std::int64_t tokens = 100000;
  KvCache cache({.kv_heads = 1, .capacity = tokens, .dim = 4, .page_size = 64});
  const Tokens token = marked(cache.config(), 1, 4, 1);
  const std::int64_t before = allocations.count;
  std::int64_t wrong = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    cache.append_to(0, token.view(), token.view());
    wrong += cache.pages_in_use() != t / 64 + 1;
  }
  EXPECT_EQ(allocations.count, before);
  EXPECT_EQ(wrong, 0);
}

TEST(Work, a_long_window_grows_its_table_by_doubling) {
  KvCache cache({.kv_heads = 1,
                 .capacity = std::int64_t{1} << 50,
                 .dim = 1,
                 .page_size = 16,
                 .pages = 4,
                 .window = CacheWindow{.length = 20}});
  const Tokens token = marked(cache.config(), 1, 1, 1);
  const std::int64_t before = allocations.count, bytes_before = allocations.bytes;
  for (int t = 0; t < 100000; ++t) cache.append_to(0, token.view(), token.view());
  EXPECT_LE(allocations.count - before, 12);
  EXPECT_LE(allocations.bytes - bytes_before, 4 * 8 * 100000 / 16);
  EXPECT_LE(cache.pages_in_use(), 4);
}

// Wherever it lands, a token changes its own places and no others: what an append writes does not grow.
TEST(Work, an_append_writes_one_token) {
  for (const CacheType type : {CacheType::f32, CacheType::bf16, CacheType::int8}) {
    KvCache cache({.kv_heads = 2, .capacity = 200, .dim = 8, .value_dim = 16, .type = type, .page_size = 32});
    for (int t = 0; t < 150; ++t) append_marked(cache, 0, 1, 1);
    const auto snapshot = [&] {
      const cache::CacheReading reading(cache, {0});
      const PagedSequence sequence = reading.sequence(0);
      std::vector<unsigned char> bytes;
      for (std::int64_t p = 0; p <= (sequence.length - 1) / 32; ++p)
        bytes.insert(bytes.end(), sequence.table[p],
                     sequence.table[p] + cache::layout_of(cache).page_bytes());
      return bytes;
    };
    for (int t = 150; t < 200; ++t) {
      const std::vector<unsigned char> before = snapshot();
      append_marked(cache, 0, 1, 3);
      const std::vector<unsigned char> after = snapshot();
      std::int64_t changed = 0;
      for (std::size_t i = 0; i < before.size(); ++i) changed += before[i] != after[i];
      ASSERT_LE(changed, cache.bytes_per_token()) << name_of(type) << ", token " << t;
    }
  }
}

TEST(Work, a_fork_costs_its_table_and_no_tokens) {
  std::vector<std::int64_t> costs;
  for (const std::int64_t page_size : {16, 64, 1024}) {
    KvCache cache({.batch = 1, .kv_heads = 2, .capacity = 64 * page_size, .dim = 8, .page_size = page_size});
    append_marked(cache, 0, 64 * page_size - 3, 1);
    const std::int64_t pages = cache.pages_in_use(), before = allocations.bytes;
    cache.fork(0);
    costs.push_back(allocations.bytes - before);
    EXPECT_EQ(cache.pages_in_use(), pages);
  }
  EXPECT_EQ(costs[0], costs[1]);
  EXPECT_EQ(costs[0], costs[2]);
  EXPECT_LE(costs[0], 64 * 8 + 1000);
}

// The bytes that a file makes a program allocate are those of the file and of the pool it names.
TEST_F(Failing, a_hostile_file_cannot_ask_for_more_than_its_pool) {
  KvCacheConfig config = everything;
  config.capacity = std::int64_t{1} << 50;
  config.page_size = std::int64_t{1} << 16;
  config.pages = 3;
  config.batch = 2000;
  config.window.reset();
  KvCache cache(config);
  cache.save("cache");
  const std::int64_t page_bytes = (append_marked(cache, 0, 1, 1), cache.bytes());
  const auto file_size = static_cast<std::int64_t>(file_bytes("cache").size());
  const std::int64_t before = allocations.bytes;
  const KvCache loaded = KvCache::load("cache");
  EXPECT_LE(allocations.bytes - before, 3 * page_bytes + 20 * file_size);
}

}  // namespace
}  // namespace heed::test
