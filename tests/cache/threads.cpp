// SPDX-License-Identifier: Apache-2.0
// Calls on different sequences of one cache go on beside each other, as if each were alone; a change beside
// another call on the same sequence is refused, and nothing tears.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "cache/append.hpp"
#include "cache/reading.hpp"
#include "heed/attention.hpp"
#include "tokens.hpp"

namespace heed::test {
namespace {

using Calls = std::vector<std::pair<std::string, std::function<void()>>>;

KvCache with_tokens() {
  KvCache cache({.batch = 3, .kv_heads = 2, .capacity = 4000, .dim = 8, .page_size = 16});
  append_marked(cache, 0, 20, 1);
  append_marked(cache, 1, 5, 1);
  return cache;
}

// Every change of sequence 0.
Calls changes(KvCache& cache) {
  return {{"append", [&] { cache.append(Tokens({3, 2, 1, 8}).view(), Tokens({3, 2, 1, 8}).view()); }},
          {"append_to", [&] { append_marked(cache, 0, 1, 5); }},
          {"truncate", [&] { cache.truncate(0, 1); }},
          {"reset", [&] { cache.reset(0); }},
          {"reset", [&] { cache.reset(); }},
          {"release", [&] { cache.release(0); }}};
}

// What is allowed whoever is at sequence 0.
Calls calls_on_others(KvCache& cache) {
  return {{"append_to", [&] { append_marked(cache, 1, 1, 6); }},
          {"append to two of three",
           [&] {
             const std::int64_t counts[] = {0, 1, 1};
             const Tokens tokens = marked(cache.config(), 1, 8, 5);
             const View three{tokens.view().data, {3, 2, 1, 8}, {0, 8, 8, 1}, DType::f32};
             cache.append(three, three, counts);
           }},
          {"attention", [&] { const cache::CacheReading reading(cache, {1, 2}); }},
          {"read", [&] { read(cache, 1); }},
          {"truncate", [&] { cache.truncate(1, 6); }},
          {"reset", [&] { cache.reset(2); }},
          {"fork, add and release", [&] { cache.release(cache.fork(1)), cache.release(cache.add()); }},
          {"counts", [&] {
             EXPECT_EQ(cache.length(0), 20);
             EXPECT_EQ(cache.lengths()[0], 20);
             EXPECT_GE(cache.sequences(), 3);
             EXPECT_EQ(cache.pages_in_use(), 3);
           }}};
}

TEST(Threads, every_change_of_a_sequence_that_is_read_is_refused_and_other_sequences_go_on) {
  KvCache cache = with_tokens();
  {
    const cache::CacheReading reading(cache, {0}), another(reading);
    for (const auto& [name, change] : changes(cache))
      EXPECT_EQ(refusal_of(change), "busy: " + name + ": sequence 0 is being read by another call");
    for (const auto& [name, call] : calls_on_others(cache)) EXPECT_EQ(refusal_of(call), "nothing") << name;
    const std::int64_t fork = cache.fork(0);
    append_marked(cache, fork, 1, 21);
    EXPECT_EQ(marks(cache, fork)[20], 21);
    EXPECT_EQ(KvCache::from_arrays(cache.to_arrays()).length(0), 20) << "reading goes on";
  }
  append_marked(cache, 0, 1, 5);
  EXPECT_EQ(cache.length(0), 21);
}

TEST(Threads, every_call_on_a_sequence_that_is_changed_is_refused_and_other_sequences_go_on) {
  KvCache cache = with_tokens();
  {
    const std::int64_t number = 0;
    const cache::NewTokens none{{}, {}, {{&number, 1}, 1}, "", {}};
    const cache::Changing changing(cache::Access::state(cache), none, "append_to");
    Calls calls = changes(cache);
    calls.insert(calls.end(), {{"attention", [&] { const cache::CacheReading reading(cache, {1, 0}); }},
                               {"read", [&] { cache.read(0, {}, {}); }},
                               {"fork", [&] { cache.fork(0); }},
                               {"to", [&] { static_cast<void>(cache.to(Device::cpu)); }},
                               {"save", [&] { cache.save("nowhere"); }}});
    for (const auto& [name, call] : calls)
      EXPECT_EQ(refusal_of(call), "busy: " + name + ": sequence 0 is being changed by another call");
    for (const auto& [name, call] : calls_on_others(cache)) EXPECT_EQ(refusal_of(call), "nothing") << name;
  }
  EXPECT_EQ(marks(cache, 0)[19], 20);
  append_marked(cache, 0, 1, 5);
}

TEST(Threads, who_changes_a_sequence_lets_readers_in_and_waits_for_them_with_no_other_change_in_between) {
  KvCache cache = with_tokens();
  const std::int64_t number = 0;
  const cache::NewTokens none{{}, {}, {{&number, 1}, 1}, "", {}};
  std::optional<cache::Changing> changing;
  changing.emplace(cache::Access::state(cache), none, "append_to");
  changing->let_readers_in();
  const auto disturb = [&] { append_marked(cache, 0, 1, 5); };
  EXPECT_EQ(refusal_of(disturb), "busy: append_to: sequence 0 is being read by another call");
  std::optional<cache::CacheReading> reading;
  reading.emplace(cache, cache::SequenceNumbers{0});
  std::thread waiting([&] { changing->wait_for_readers(); });
  while (refusal_of([&] { const cache::CacheReading another(cache, {0}); }) == "nothing")
    std::this_thread::yield();
  EXPECT_EQ(refusal_of(disturb), "busy: append_to: sequence 0 is being changed by another call");
  EXPECT_EQ(reading->sequence(0).length, 20) << "who is there goes on";
  reading.reset();
  waiting.join();
  EXPECT_EQ(refusal_of([&] { read(cache, 0); }), "busy: read: sequence 0 is being changed by another call");
  changing.reset();
  EXPECT_EQ(refusal_of(disturb), "nothing");
}

// What one thread does with sequences of its own in a cache that others use too, and the same alone in a
// cache of its own, where numbers differ. Both have the same prompts at the same numbers.
class Twin {
 public:
  static constexpr std::int64_t prompts = 2;

  Twin(KvCache& shared, std::uint64_t seed, bool has_room)
      : random_(seed), shared_(shared), alone_(alone(shared.config())), has_room_(has_room) {}

  static void append_prompts(KvCache& cache) {
    Random random(1);
    for (std::int64_t n = 0; n < prompts; ++n) {
      const Pair tokens(random, cache.config(), 37 + n);
      cache.append_to(n, tokens.k.view(), tokens.v.view());
    }
  }

  // The first thing that differed, or nothing.
  std::string run(int steps) {
    for (int n = 0; n < steps; ++n)
      if (const std::string wrong = step(); !wrong.empty()) return wrong + " in step " + std::to_string(n);
    while (!pairs_.empty()) release(0);
    return {};
  }

 private:
  struct Pair {
    Tokens k, v;
    Pair(Random& random, const KvCacheConfig& c, std::int64_t count)
        : k(Tokens::random(random, {1, c.kv_heads, count, c.dim})),
          v(Tokens::random(random, {1, c.kv_heads, count, *c.value_dim})) {}
  };
  struct Numbers {
    std::int64_t shared, alone;
  };

  static KvCache alone(KvCacheConfig config) {
    config.pages = 400;
    config.batch = prompts;
    KvCache made(config);
    append_prompts(made);
    return made;
  }

  std::size_t any() {
    return static_cast<std::size_t>(draw(random_, 0, static_cast<std::int64_t>(pairs_.size()) - 1));
  }

  std::string step() {
    const std::int64_t what = pairs_.empty() ? 0 : draw(random_, 0, 9);
    if (what < 2 && pairs_.size() < 4) return fork();
    if (what == 2) return release(any()), "";
    if (what == 3) return truncate(any());
    if (const std::string wrong = append(any()); !wrong.empty()) return wrong;
    return attend();
  }

  // Of a prompt, or of a sequence of its own.
  std::string fork() {
    Numbers from{0, 0};
    if (pairs_.empty() || one_in(random_, 2))
      from.shared = from.alone = draw(random_, 0, prompts - 1);
    else
      from = pairs_[any()];
    std::optional<std::int64_t> length;
    if (one_in(random_, 2)) length = draw(random_, 0, alone_.length(from.alone));
    Numbers made{};
    const std::string refused = refusal_of([&] { made.alone = alone_.fork(from.alone, length); });
    if ((refused == "nothing") !=
        (refusal_of([&] { made.shared = shared_.fork(from.shared, length); }) == "nothing"))
      return "fork";
    if (refused == "nothing") pairs_.push_back(made);
    return {};
  }

  void release(std::size_t n) {
    shared_.release(pairs_[n].shared);
    alone_.release(pairs_[n].alone);
    pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(n));
  }

  std::string truncate(std::size_t n) {
    const std::int64_t length =
        std::max<std::int64_t>(alone_.length(pairs_[n].alone) - draw(random_, 0, 9), 0);
    const std::string one = refusal_of([&] { alone_.truncate(pairs_[n].alone, length); }),
                      other = refusal_of([&] { shared_.truncate(pairs_[n].shared, length); });
    return (one == "nothing") == (other == "nothing") ? "" : "truncate: " + other;
  }

  std::string append(std::size_t n) {
    Pair tokens(random_, shared_.config(), one_in(random_, 6) ? 20 : draw(random_, 1, 3));
    if (one_in(random_, 16)) tokens.v.set({0, 0, 0, 0}, one_in(random_, 2) ? NAN : -INFINITY);
    const auto append = [&](KvCache& cache, std::int64_t number) {
      return refusal_of([&] { cache.append_to(number, tokens.k.view(), tokens.v.view()); });
    };
    const std::string refused = append(shared_, pairs_[n].shared);
    const bool has_no_page = !has_room_ && refused.starts_with("capacity: cache: ");
    if (!has_no_page && (refused == "nothing") != (append(alone_, pairs_[n].alone) == "nothing"))
      return refused;
    if (!one_in(random_, 4)) return {};
    return read(shared_, pairs_[n].shared) == read(alone_, pairs_[n].alone) ? "" : "other tokens";
  }

  // Over all of its sequences in one call.
  std::string attend() {
    const KvCacheConfig& c = shared_.config();
    std::vector<std::int64_t> shared, alone;
    for (const Numbers& pair : pairs_)
      if (alone_.length(pair.alone) > 0) shared.push_back(pair.shared), alone.push_back(pair.alone);
    if (shared.empty()) return {};
    const Shape shape{std::ssize(shared), c.kv_heads, 1, c.dim},
        out{std::ssize(shared), c.kv_heads, 1, *c.value_dim};
    const Tokens q = Tokens::random(random_, shape);
    const auto attend = [&](const KvCache& cache, const std::vector<std::int64_t>& numbers) {
      std::vector<float> found(static_cast<std::size_t>(out.elements()));
      attention({.q = q.view(), .cache = &cache, .sequences = numbers}, {.out = {found, out}},
                {.masks = {Causal{}}});
      return found;
    };
    const std::vector<float> found = attend(shared_, shared), wanted = attend(alone_, alone);
    return std::memcmp(found.data(), wanted.data(), found.size() * sizeof(float)) == 0 ? ""
                                                                                       : "another answer";
  }

  Random random_;
  KvCache& shared_;
  KvCache alone_;
  bool has_room_;
  std::vector<Numbers> pairs_{};
};

void expect_as_if_alone(const KvCacheConfig& config, bool has_room) {
  KvCache cache(config);
  Twin::append_prompts(cache);
  const std::int64_t pages = cache.pages_in_use();
  constexpr std::size_t threads = 4;
  std::vector<std::string> wrong(threads);
  std::vector<std::thread> all;
  for (std::size_t n = 0; n < threads; ++n)
    all.emplace_back([&, n] { wrong[n] = Twin(cache, n + 1, has_room).run(250); });
  for (std::thread& thread : all) thread.join();
  for (std::size_t n = 0; n < threads; ++n)
    EXPECT_EQ(wrong[n], "") << "seed " << n + 1 << ", " << name_of(config.type) << ", " << *config.pages
                            << " pages";
  EXPECT_EQ(cache.pages_in_use(), pages);
}

TEST(Threads, with_sequences_of_their_own_are_as_if_each_had_a_cache_of_its_own) {
  const KvCacheConfig plain{
      .batch = 2, .kv_heads = 2, .capacity = 150, .dim = 8, .page_size = 16, .pages = 200};
  expect_as_if_alone(plain, true);
  KvCacheConfig config = plain;
  config.type = CacheType::int8;
  config.window = {30, 2};
  expect_as_if_alone(config, true);
  config = plain;
  config.rotary = CacheRotary{{}, CacheRotary::When::read};
  expect_as_if_alone(config, true);
}

TEST(Threads, over_few_pages_are_refused_a_page_or_as_if_alone) {
  expect_as_if_alone({.batch = 2, .kv_heads = 2, .capacity = 150, .dim = 8, .page_size = 16, .pages = 20},
                     false);
}

// Runs both at the same time.
template <class One, class Other>
void at_once(const One& one, const Other& other) {
  std::atomic<int> ready{0};
  const auto meet = [&] {
    for (++ready; ready < 2;) std::this_thread::yield();
  };
  std::thread thread([&] { meet(), other(); });
  meet(), one();
  thread.join();
}

// Two sequences share a page and nobody else does. Whichever comes second owns it, as soon as the first has
// its copy; there is one page for both, and whole or not, one is enough.
TEST(Threads, the_last_user_of_a_page_writes_to_it_after_the_others_have_their_copies) {
  for (int n = 0; n < 50; ++n) {
    KvCache cache({.kv_heads = 4, .capacity = 256, .dim = 16, .page_size = 256, .pages = 2});
    append_marked(cache, 0, 200, 1);
    const std::int64_t fork = cache.fork(0, 100);
    at_once([&] { append_marked(cache, 0, 1, 7); }, [&] { append_marked(cache, fork, 30, 8); });
    std::vector<float> long_one(200), short_one(100);
    for (std::size_t t = 0; t < 200; ++t) long_one[t] = static_cast<float>(t + 1);
    short_one.assign(long_one.begin(), long_one.begin() + 100);
    long_one.push_back(7);
    for (int t = 0; t < 30; ++t) short_one.push_back(static_cast<float>(8 + t));
    ASSERT_EQ(marks(cache, 0), long_one) << n;
    ASSERT_EQ(marks(cache, fork), short_one) << n;
  }
}

TEST(Threads, nobody_writes_to_a_page_that_another_call_still_copies_from) {
  KvCache cache = with_tokens();
  cache::State& state = cache::Access::state(cache);
  const unsigned char* const page = state.sequences[1].table[0];
  const auto in_the_pool = [&](const auto& change) {
    const std::lock_guard guard(state.lock);
    change(state.pool);
    state.has_left.notify_all();
  };
  in_the_pool([&](cache::PagePool& pool) { pool.begin_copy(page); });
  const std::vector<unsigned char> before(page, page + state.layout.page_bytes());
  std::thread append([&] { append_marked(cache, 1, 20, 6); });
  while (cache.pages_in_use() < 4) std::this_thread::yield();  // it has its pages
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // and would write now
  EXPECT_TRUE(std::equal(before.begin(), before.end(), page));
  EXPECT_EQ(cache.length(1), 5);
  in_the_pool([&](cache::PagePool& pool) { pool.end_copy(page); });
  append.join();
  EXPECT_EQ(marks(cache, 1)[24], 25);
}

// Saving is refused while any sequence changes, and changes while it saves; what is saved is whole.
TEST(Threads, a_cache_is_saved_between_two_changes) {
  KvCache cache = with_tokens();
  std::atomic<bool> is_done{false};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (const std::int64_t number : {1, 2})
    threads.emplace_back([&, number] {
      for (std::int64_t mark = cache.length(number) + 1; !is_done && mark < 4000; ++mark)
        while (refusal_of([&] { append_marked(cache, number, 1, static_cast<float>(mark)); }) != "nothing")
          ++refused, std::this_thread::yield();
    });
  int saved = 0, torn = 0;
  while (saved < 15) {
    std::optional<KvCache> copy;
    const std::string sentence = refusal_of([&] { copy.emplace(KvCache::from_arrays(cache.to_arrays())); });
    torn += sentence != "nothing" && !sentence.ends_with(" is being changed by another call");
    saved += copy.has_value();
    for (std::int64_t n = 0; copy && n < 3; ++n) {
      const std::vector<float> found = marks(*copy, n);
      for (std::size_t t = 0; t < found.size(); ++t) torn += found[t] != static_cast<float>(t + 1);
    }
  }
  is_done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0) << "beside " << refused << " refused appends";
}

TEST(Threads, many_readers_see_the_same) {
  const KvCache cache = with_tokens();
  const Contents expected = read(cache, 0);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) {
        const cache::CacheReading reading(cache, {0});
        wrong +=
            !(read(cache, 0) == expected) || reading.sequence(0).length != 20 || cache.pages_in_use() != 3;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Both sides are refused at times; whatever succeeds is whole.
TEST(Threads, readers_and_writers_of_one_sequence_never_tear) {
  KvCache cache = with_tokens();
  std::atomic<bool> is_done{false};
  std::atomic<int> torn{0}, appended{0};
  const auto write = [&] {
    for (int n = 0; n < 1000; ++n)
      if (refusal_of([&] { append_marked(cache, 1, 1, 9); }) == "nothing") ++appended;
  };
  const auto look = [&] {
    while (!is_done) {
      const std::string refused = refusal_of([&] {
        const cache::CacheReading reading(cache, {1});
        std::vector<float> k(static_cast<std::size_t>(2 * 8 * reading.sequence(1).length)), v(k.size());
        const Shape shape{1, 2, reading.sequence(1).length, 8};
        reading.read(1, {k, shape}, {v, shape});
        torn += k[0] != 1 || v[0] != -1 || (shape.length > 5 && k[5 * 8] != 9);
      });
      torn +=
          refused != "nothing" && refused != "busy: attention: sequence 1 is being changed by another call";
    }
  };
  std::thread reader(look);
  std::thread first(write), second(write);
  first.join();
  second.join();
  is_done = true;
  reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(cache.length(1), 5 + appended);
}

// A page that its last user gave back, and that is taken for a copy of another page.
TEST(Threads, nobody_copies_to_a_page_that_another_call_still_copies_from) {
  KvCache cache({.batch = 2, .kv_heads = 2, .capacity = 4000, .dim = 8, .page_size = 16});
  append_marked(cache, 0, 5, 1);
  append_marked(cache, 1, 5, 6);
  cache::State& state = cache::Access::state(cache);
  const unsigned char* const page = state.sequences[1].table[0];
  const auto in_the_pool = [&](const auto& change) {
    const std::lock_guard guard(state.lock);
    change(state.pool);
    state.has_left.notify_all();
  };
  in_the_pool([&](cache::PagePool& pool) { pool.begin_copy(page); });
  const std::vector<unsigned char> before(page, page + state.layout.page_bytes());
  cache.reset(1);
  cache.fork(0);
  std::thread append([&] { append_marked(cache, 0, 1, 9); });
  while (cache.pages_in_use() < 2) std::this_thread::yield();  // it has its page
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // and would write now
  EXPECT_TRUE(std::equal(before.begin(), before.end(), page));
  in_the_pool([&](cache::PagePool& pool) { pool.end_copy(page); });
  append.join();
  EXPECT_EQ(marks(cache, 0), (std::vector<float>{1, 2, 3, 4, 5, 9}));
}

}  // namespace
}  // namespace heed::test
