// SPDX-License-Identifier: Apache-2.0
// The layer over a cache that other threads change and read: refused, or as if it were alone.
#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "../cache/tokens.hpp"
#include "cache/reading.hpp"
#include "layer/call.hpp"
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

using test::refusal_of;
using test::Seen;

constexpr std::int64_t model_dim = 64, head_dim = 16, capacity = 64;

struct Step {
  LayerConfig config{.model_dim = model_dim, .heads = 4, .kv_heads = 2};
  AttentionLayer layer{config, random_weights(config, 1)};
  KvCache cache{{.batch = 2, .kv_heads = 2, .capacity = capacity, .dim = head_dim, .page_size = 16}};
  Tensor prompt = random_tensor({2, 1, 20, model_dim}, 2), x = random_tensor({2, 1, 2, model_dim}, 3);
  test::Tokens token = test::marked(cache.config(), 1, head_dim, 1);

  Step() { run(layer, {.x = prompt.view(), .cache = &cache}, causal); }
  Tensor take() { return run(layer, {.x = x.view(), .cache = &cache}, causal); }
  void disturb() { cache.append_to(0, token.view(), token.view()); }
};

const char* const being_read = "busy: append_to: sequence 0 is being read by another call";

// Tries to append in every task, from another thread.
struct Intruder : Executor {
  Step& step;
  std::vector<std::string> refused{};  // one sentence per run
  explicit Intruder(Step& s) : step(s) {}

  int concurrency() const override { return 2; }
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    for (std::size_t i = 0; i < tasks; ++i) task(context, i);
    std::thread([&] {
      refused.push_back(refusal_of([&] {
        step.disturb();
        step.cache.truncate(0, step.cache.length(0) - 1);
      }));
    }).join();
  }
};

TEST(cached_threads, nobody_changes_the_cache_from_the_append_to_the_end_of_the_call) {
  Step step;
  step.x = random_tensor({2, 1, 40, model_dim}, 3);  // enough to be shared out
  Intruder intruder(step);
  set_num_threads(2);
  set_executor(&intruder);
  step.take();
  set_executor(nullptr);
  ASSERT_GE(intruder.refused.size(), 2u);
  EXPECT_EQ(intruder.refused[intruder.refused.size() - 2], being_read) << "while it attends";
  EXPECT_EQ(intruder.refused.back(), being_read) << "while it projects what was attended";
  EXPECT_EQ(refusal_of([&] { step.disturb(); }), "nothing");
}

// Another thread appends a token to the 22 that a call makes of 20, as soon as it may: when the call is done,
// or, if it is slow, before the next one.
TEST(cached_threads, tokens_of_another_thread_come_before_a_call_or_after_it) {
  Step step;
  const auto go_back = [&] {
    for (const std::int64_t n : {0, 1})
      while (refusal_of([&] { step.cache.truncate(n, 20); }) != "nothing") std::this_thread::yield();
  };
  const Tensor alone = step.take();
  go_back();
  step.disturb();
  const Tensor after = step.take();
  go_back();
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    while (!is_done)
      refusal_of([&] {
        if (step.cache.length(0) == 22) step.disturb();
      });
  });
  int wrong = 0, taken = 0;
  for (int n = 0; n < 1000; ++n) {
    Tensor y;
    if (refusal_of([&] { y = step.take(); }) == "nothing") {
      ++taken;
      wrong += bit_misses(y.values, alone.values) != 0 && bit_misses(y.values, after.values) != 0;
    }
    go_back();
  }
  is_done = true;
  other.join();
  EXPECT_EQ(wrong, 0) << "of " << taken;
  EXPECT_GT(taken, 0);
}

// Each steps a sequence of its own; the answers are those of a cache that nobody else uses.
TEST(cached_threads, with_sequences_of_their_own_are_never_refused_and_answer_as_if_alone) {
  constexpr int threads = 3, steps = 60;
  Step step;
  KvCache shared({.batch = threads, .kv_heads = 2, .capacity = 8 * steps, .dim = head_dim, .page_size = 16});
  std::vector<std::string> wrong(threads);
  const auto run_one = [&](unsigned n) {
    KvCache alone({.batch = 1, .kv_heads = 2, .capacity = 8 * steps, .dim = head_dim, .page_size = 16});
    const std::int64_t own[] = {n};
    for (int at = 0; at < steps && wrong[n].empty(); ++at) {
      const Tensor x = random_tensor({1, 1, 1 + at % 4, model_dim}, 100 * n + static_cast<unsigned>(at));
      Tensor found;
      wrong[n] = refusal_of(
          [&] { found = run(step.layer, {.x = x.view(), .cache = &shared, .sequences = own}, causal); });
      if (wrong[n] == "nothing") wrong[n].clear();
      const Tensor wanted = run(step.layer, {.x = x.view(), .cache = &alone}, causal);
      if (wrong[n].empty() && bit_misses(found.values, wanted.values) != 0)
        wrong[n] = "step " + std::to_string(at);
    }
  };
  std::vector<std::thread> all;
  for (unsigned n = 0; n < threads; ++n) all.emplace_back(run_one, n);
  for (std::thread& thread : all) thread.join();
  for (const std::string& sentence : wrong) EXPECT_EQ(sentence, "");
}

struct Tokens {
  Tensor k = random_tensor({2, 2, 2, head_dim}, 1), v = random_tensor({2, 2, 2, head_dim}, 2);
};

TEST(appended_tokens, are_held_until_the_call_ends) {
  Step step;
  const Tokens t;
  const layer::GrowingSequences sequences{{0, 1}, {20, 20}, {2, 2}};
  {
    layer::AppendedTokens appended(step.cache, sequences, t.k.view(), t.v.view());
    EXPECT_EQ(refusal_of([&] { step.disturb(); }), being_read);
    EXPECT_EQ(step.cache.length(0), 22) << "reading goes on";
    appended.keep();
  }
  EXPECT_EQ(step.cache.length(1), 22);
  EXPECT_EQ(refusal_of([&] { step.disturb(); }), "nothing");
}

TEST(appended_tokens, are_not_taken_back_before_readers_are_done) {
  Step step;
  const Seen before(step.cache);
  const Tokens t;
  const layer::GrowingSequences sequences{{0, 1}, {20, 20}, {2, 2}};
  std::optional<layer::AppendedTokens> appended;
  appended.emplace(step.cache, sequences, t.k.view(), t.v.view());
  std::optional<cache::CacheReading> reading;
  reading.emplace(step.cache, cache::SequenceNumbers{1});
  std::atomic<bool> is_undone{false};
  std::thread undo([&] {
    appended.reset();
    is_undone = true;
  });
  while (refusal_of([&] { const cache::CacheReading another(step.cache, {1}); }) == "nothing")
    std::this_thread::yield();
  EXPECT_EQ(reading->sequence(1).length, 22) << "nobody else comes in, and who is there goes on";
  EXPECT_FALSE(is_undone);
  reading.reset();
  undo.join();
  EXPECT_TRUE(Seen(step.cache) == before);
}

}  // namespace
}  // namespace heed::layer_tests
