// SPDX-License-Identifier: Apache-2.0
// Calls over ranks that go wrong in unusual ways: nothing hangs, nothing wrong is returned, and a sentence
// says what it was.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <thread>

#include "heed/cache.hpp"
#include "heed/threads.hpp"
#include "ranks/meaning.hpp"
#include "ranks/tests/rank_threads.hpp"
#include "ranks/tests/schedules.hpp"

namespace heed::cases {
namespace {

using std::chrono::milliseconds;

// A call of `tokens` queries and keys, one head, over the group.
struct SmallCall {
  Split split;
  Tensor rows, out;

  SmallCall(const Group& group, std::int64_t tokens)
      : split(split_sequence({tokens, tokens, 1, 1}, group.size())) {
    const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
    std::int64_t own = 0;
    for (const Stretch& s : share.queries) own += s.length;
    rows = Tensor::random({1, 1, own, 8}, 3);
    out = Tensor(rows.shape());
  }
  void operator()(Group& group, const Options& options = {}) {
    attention(group, split, {rows.view(), rows.view(), rows.view()}, {.out = out.mutable_view()}, options);
  }
};

// One query of 4 heads over a spread cache of 3000 tokens: enough to share among threads.
struct SmallStep {
  KvCache cache;
  Tensor q, out;
  std::int64_t length = 3000;

  explicit SmallStep(const Group& group, std::int64_t page_size = 64)
      : cache({.kv_heads = 4, .capacity = 4096, .dim = 32, .page_size = page_size}),
        q(Tensor::random({1, 4, 1, 32}, 1)),
        out(q.shape()) {
    const Tensor k = Tensor::random({1, 4, length, 32}, 2);
    append_own(cache, 0, 0, k.view(), k.view(), group.rank(), group.size());
  }
  void operator()(Group& group, const Options& options = {}) {
    attention(group, q.view(), {.cache = &cache, .lengths = {&length, 1}}, {.out = out.mutable_view()},
              options);
  }
};

std::string sentence_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Misuse, a_deadline_beyond_all_clocks_has_not_passed) {
  const auto said = on_ranks(group_of_threads(2, {.deadline = milliseconds::max()}), [](Group& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(20));
    SmallCall call(group, 10);
    call(group);
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

struct Throwing final : Executor {
  explicit Throwing(bool is_standard) : throws_standard(is_standard) {}
  bool throws_standard;
  int concurrency() const override { return 2; }
  void run(std::size_t, void (*)(void*, std::size_t), void*) override {
    if (throws_standard) throw std::runtime_error("the pool is closed");
    throw 7;
  }
};

// The others learn of it at once, not by their deadline, and the group is broken for all.
TEST(Misuse, what_an_executor_throws_on_one_rank_ends_the_call_of_all) {
  for (const bool is_standard : {true, false})
    for (const bool is_decode : {true, false}) {
      std::atomic<int> thrown = 0;
      const auto said = on_ranks(group_of_threads(3), [&](Group& group) {
        Throwing executor(is_standard);
        Options options;
        if (group.rank() == 1) options.executor = &executor;
        SmallCall call(group, 6000);
        SmallStep step(group);
        const auto once = [&] { is_decode ? step(group, options) : call(group, options); };
        try {
          once();
        } catch (const Error& e) {
          EXPECT_EQ(e.code, Error::rank) << e.what();
          EXPECT_NE(std::string(e.what()).find("rank 1 gave up: "), std::string::npos) << e.what();
          ++thrown;
        } catch (...) {
          EXPECT_EQ(group.rank(), 1);
          ++thrown;
        }
        options.executor = nullptr;
        EXPECT_NE(sentence_of(once), "");
      });
      EXPECT_EQ(thrown, 3) << is_standard << is_decode;
      for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
    }
}

TEST(Misuse, calls_in_another_order_are_refused_by_all) {
  const auto said = on_ranks(group_of_threads(2), [](Group& group) {
    SmallCall call(group, 10);
    SmallStep step(group);
    const std::string first = sentence_of([&] { group.rank() == 0 ? call(group) : step(group); });
    EXPECT_EQ(first,
              "rank 1: which call this is (1: attention, 2: its gradients, 3: decode, 4: a layer) is 3, "
              "and 1 on rank 0");
    EXPECT_EQ(sentence_of([&] { call(group); }), "");
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

TEST(Misuse, other_masks_of_one_ranks_step_are_refused_by_all) {
  const auto said = on_ranks(group_of_threads(2), [](Group& group) {
    SmallStep step(group);
    const Options causal{.masks = {Causal{}}}, window{.masks = {Window{9, 0}}};
    const std::string first = sentence_of([&] { step(group, group.rank() == 0 ? causal : window); });
    EXPECT_EQ(first.find("rank 1: options.masks, as a number,"), 0u) << first;
    EXPECT_EQ(sentence_of([&] { step(group, causal); }), "");
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

// Where the two sequences coincide is said of the whole call: ranks that compute together take each other's
// rows.
TEST(Misuse, other_alignments_of_one_rank_are_refused_by_all) {
  const std::vector<std::int32_t> ids{1, 1, 2, 2, 2, 3, 3, 3, 3, 3};
  const float slope = 0.5f;
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    const Align align = group.rank() == 0 ? Align::starts : Align::ends;
    SmallCall call(group, 10);
    const std::string of_ids =
        sentence_of([&] { call(group, {.masks = {Document{.ids = ids, .align = align}}}); });
    EXPECT_EQ(of_ids.find("rank 1: options.masks, as a number,"), 0u) << of_ids;
    EXPECT_EQ(sentence_of([&] { call(group, {.alibi = Alibi{{&slope, 1}, align}}); }),
              "rank 1: options.alibi.align, or 0, is 2, and 1 on rank 0");
    EXPECT_EQ(sentence_of([&] { call(group, {.alibi = Alibi{{&slope, 1}, Align::ends}}); }), "");
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

// It computes nothing with it, and the others learn of it all the same.
TEST(Misuse, a_scale_of_a_rank_without_queries_is_compared) {
  const Split split{{4, 4, 1, 1}, {{{{0, 4}}, {{0, 2}}, 0, 1}, {{}, {{2, 2}}, 0, 1}}};
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    const bool is_one = group.rank() == 1;
    const Tensor q = Tensor::random({1, 1, is_one ? 0 : 4, 8}, 1), k = Tensor::random({1, 1, 2, 8}, 2);
    Tensor out(q.shape());
    for (const float scale : {std::nanf(""), -0.0f, 0.5f}) {
      Options options;
      if (is_one) options.scale = scale;
      const std::string sentence = sentence_of([&] {
        attention(group, split, {q.view(), k.view(), k.view()}, {.out = out.mutable_view()}, options);
      });
      EXPECT_EQ(sentence.find("rank 1: options.scale, in bits,"), 0u) << scale << ": " << sentence;
    }
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

TEST(Misuse, a_second_thread_in_a_group_is_told_so) {
  std::vector<Group> ends = group_of_threads(2, {.deadline = milliseconds(300)});
  std::string first, second;
  std::thread one([&] {
    SmallCall call(ends[0], 10);  // rank 1 does not come
    first = sentence_of([&] { call(ends[0]); });
  });
  std::this_thread::sleep_for(milliseconds(100));
  SmallCall call(ends[0], 10);
  second = sentence_of([&] { call(ends[0]); });
  one.join();
  EXPECT_EQ(second, "group: another thread is in a call of it right now");
  EXPECT_NE(first.find("nothing received from rank 1 for 0.3 s"), std::string::npos) << first;
}

TEST(Misuse, an_operation_may_outlive_its_group) {
  std::vector<std::byte> bytes(100);
  Group::Pending pending;
  {
    std::vector<Group> ends = group_of_threads(2);
    pending = ends[0].broadcast("what", 0, bytes);
  }
}

TEST(Misuse, more_ranks_than_tokens_and_caches_of_other_pages_give_the_bits_of_one_process) {
  std::vector<Tensor> steps(5);
  const auto said = on_ranks(group_of_threads(5), [&](Group& group) {
    for (const std::int64_t tokens : {0, 1, 2, 4}) {
      SmallCall call(group, tokens);
      call(group);
    }
    SmallStep step(group, group.rank() % 2 == 0 ? 16 : 1024);
    step(group);
    steps[static_cast<std::size_t>(group.rank())] = step.out;
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
  std::vector<Group> alone = group_of_threads(1);
  SmallStep expected(alone[0]);
  expected(alone[0]);
  for (const Tensor& step : steps) EXPECT_TRUE(same_bits(step, expected.out));
}

// A row with such a number is that of one process, or is missing and said to be; all other rows are there.
// Ranks compare a list by one number.
TEST(Misuse, a_list_is_not_taken_for_a_longer_one) {
  const std::int64_t list[] = {3, 0, 0, 0};
  for (std::size_t length = 0; length < 4; ++length)
    EXPECT_NE(ranks::number_of(std::span(list, length)), ranks::number_of(std::span(list, length + 1)));
}

TEST(Misuse, infinities_and_nans_stay_in_their_rows) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {std::nanf(""), infinity, -infinity, 3e38f}) {
    Call whole{.q = Tensor::random({1, 1, 9, 8}, 1),
               .k = Tensor::random({1, 1, 1500, 8}, 2),
               .v = Tensor::random({1, 1, 1500, 8}, 3)};
    whole.q.set(0, 0, 4, 2, x);
    const Results expected = run(whole, {});
    const Split split = split_sequence({9, 1500, 1, 1}, 3);
    const auto said = on_ranks(group_of_threads(3), [&](Group& group) {
      const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
      const Call call = call_of(whole, share);
      Results results(call, {});
      const std::string sentence =
          sentence_of([&] { attention(group, split, call.inputs(), results.outputs(), call.options()); });
      const Tensor part = share_of(expected.out, share.queries, 0, 1);
      std::int64_t row = 0;
      for (const Stretch& s : share.queries)
        for (std::int64_t i = s.first; i < s.first + s.length; ++i, ++row)
          for (std::int64_t d = 0; d < 8 && (i != 4 || sentence.empty()); ++d)
            EXPECT_TRUE(results.out.at(0, 0, row, d) == part.at(0, 0, row, d) ||
                        (std::isnan(results.out.at(0, 0, row, d)) && std::isnan(part.at(0, 0, row, d))))
                << x << " in row 4, row " << i << ": " << sentence;
    });
    for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
  }
}

}  // namespace
}  // namespace heed::cases
