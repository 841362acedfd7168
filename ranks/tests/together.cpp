// SPDX-License-Identifier: Apache-2.0
// Ranks that map the same memory compute a call together: whoever is free takes the next rows, whosever they
// are. What cannot be had that way goes by messages, with the same bits.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cfenv>
#include <cmath>
#include <fstream>
#include <optional>

#include "heed/threads.hpp"
#include "ranks/tests/rank_threads.hpp"
#include "ranks/tests/schedules.hpp"
#include "ranks/tests/shared_memory_ranks.hpp"

namespace heed::cases {
namespace {

using std::chrono::milliseconds;

Call one_head(std::int64_t queries, std::int64_t keys) {
  return {.q = Tensor::random({1, 1, queries, 8}, 1),
          .k = Tensor::random({1, 1, keys, 8}, 2),
          .v = Tensor::random({1, 1, keys, 8}, 3)};
}

Split split_of(const Call& whole, const Group& group) {
  return split_sequence({whole.queries(), whole.keys(), whole.heads(), whole.k.shape().heads}, group.size());
}

// The part of one rank, with what `change` makes of its options; whether it has the bits of one process.
testing::AssertionResult has_the_bits(
    Group& group, const Call& whole, const std::function<void(Options&)>& change = [](Options&) {}) {
  const Split split = split_of(whole, group);
  const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
  const Call call = call_of(whole, share);
  Results results(call, {.log_sum_exp = true});
  Options options = call.options();
  change(options);
  attention(group, split, call.inputs(), results.outputs(), options);
  return same_bits(results.out, share_of(run(whole, {}).out, share.queries, 0, whole.heads()));
}

// Two threads that come to nothing: rows of one head are copied without them.
struct Idle final : Executor {
  int concurrency() const override { return 2; }
  void run(std::size_t, void (*)(void*, std::size_t), void*) override {}
};

TEST(Together, a_rank_that_does_nothing_has_its_rows_from_the_others) {
  const Call whole = one_head(700, 3000);
  expect_nothing_said(on_ranks(group_of_shared_memory(3), [&](Group& group) {
    Idle idle;
    EXPECT_TRUE(has_the_bits(group, whole, [&](Options& options) {
      if (group.rank() == 1) options.executor = &idle;
    }));
  }));
}

// As one that starts a thread for whatever it is asked to run would have it.
struct Boundless final : Executor {
  std::size_t most = 0;  // that it was asked to run
  int concurrency() const override { return 1 << 20; }
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    most = std::max(most, tasks);
    for (std::size_t n = 0; n < tasks; ++n) task(context, n);
  }
};

TEST(Together, an_executor_without_bounds_is_asked_for_no_more_than_there_are_tasks) {
  const Call whole = one_head(700, 3000);
  expect_nothing_said(on_ranks(group_of_shared_memory(2), [&](Group& group) {
    Boundless boundless;
    EXPECT_TRUE(has_the_bits(group, whole, [&](Options& options) { options.executor = &boundless; }));
    EXPECT_LE(boundless.most, 700u);
  }));
}

struct Throwing final : Executor {
  int concurrency() const override { return 2; }
  void run(std::size_t, void (*)(void*, std::size_t), void*) override {
    throw std::runtime_error("this executor gives up");
  }
};

TEST(Together, a_rank_that_gives_up_is_named_by_all_others) {
  const Call whole = one_head(700, 3000);
  const auto said = on_ranks(group_of_shared_memory(3, {.deadline = milliseconds(300)}), [&](Group& group) {
    Throwing throwing;
    EXPECT_TRUE(has_the_bits(group, whole, [&](Options& options) {
      if (group.rank() == 1) options.executor = &throwing;
    }));
  });
  EXPECT_EQ(said[1], "this executor gives up");
  for (const std::size_t r : {0u, 2u})
    EXPECT_EQ(said[r],
              "rank " + std::to_string(r) + ", step 5 (results): nothing received from rank 1 for 0.3 s");
}

TEST(Together, calls_of_any_size_follow_each_other_in_one_memory) {
  expect_nothing_said(on_ranks(group_of_shared_memory(3), [](Group& group) {
    for (const std::int64_t tokens : {40, 2000, 1, 900, 3000, 3000, 5})
      EXPECT_TRUE(has_the_bits(group, one_head(tokens, tokens))) << tokens;
  }));
}

std::size_t mapped_files() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/dev/shm/heed-") != std::string::npos;
  return count;
}

// 256 MiB for each rank are kept. All keys are one row, which only the memory that is shared has so often.
TEST(Together, memory_for_a_long_call_ends_with_it) {
  const std::array<float, 8> row{1, 2, 3, 4, 5, 6, 7, 8};
  const auto attend = [&](Group& group, std::int64_t keys) {
    const View k(static_cast<const void*>(row.data()), {1, 1, keys, 8}, {0, 0, 0, 1}, DType::f32);
    const Tensor q = Tensor::random({1, 1, 3, 8}, 1);
    Tensor out({1, 1, 3, 8}), expected({1, 1, 3, 8});
    attention({q.view(), k, k}, {.out = expected.mutable_view()});
    attention(group, split_sequence({3, keys, 1, 1}, 1), {q.view(), k, k}, {.out = out.mutable_view()});
    EXPECT_TRUE(same_bits(out, expected));
  };
  expect_nothing_said(on_ranks(group_of_shared_memory(1), [&](Group& group) {
    const std::size_t before = mapped_files();
    attend(group, 1000);
    EXPECT_EQ(mapped_files(), before + 1);
    attend(group, 4'200'000);
    EXPECT_EQ(mapped_files(), before);
  }));
}

// While it lives no file may have more than a million bytes.
class ShortFiles {
 public:
  ShortFiles() {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit less = before_;
    less.rlim_cur = 1'000'000;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &less), 0);
  }
  ~ShortFiles() { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0); }
  ShortFiles(const ShortFiles&) = delete;
  ShortFiles& operator=(const ShortFiles&) = delete;

 private:
  rlimit before_{};
};

TEST(Together, ranks_that_find_no_room_exchange_messages) {
  std::vector<Group> ends = group_of_shared_memory(2);
  const ShortFiles no_room;
  const std::size_t mapped = mapped_files();
  expect_nothing_said(on_ranks(std::move(ends), [&](Group& group) {
    for (int n = 0; n < 2; ++n) EXPECT_TRUE(has_the_bits(group, one_head(20, 40'000)));
    EXPECT_LE(mapped_files(), mapped);
  }));
}

TEST(Together, ranks_that_found_no_room_look_for_it_again) {
  const Call whole = one_head(2, 40'000);
  std::optional<ShortFiles> no_room;
  std::barrier all(2);
  std::vector<Group> ends = group_of_shared_memory(2);
  const std::size_t mapped = mapped_files();
  no_room.emplace();
  expect_nothing_said(on_ranks(std::move(ends), [&](Group& group) {
    EXPECT_TRUE(has_the_bits(group, whole));
    all.arrive_and_wait();
    if (group.rank() == 0) no_room.reset();
    all.arrive_and_wait();
    std::size_t more = 0;  // files that are mapped while nobody is in a call
    for (int n = 0; n < 40 && more == 0; ++n) {
      EXPECT_TRUE(has_the_bits(group, whole));
      all.arrive_and_wait();
      more = mapped_files() - mapped;
      all.arrive_and_wait();
    }
    EXPECT_EQ(more, 2u);  // one for each rank
  }));
}

TEST(Together, ranks_that_would_compute_otherwise_exchange_messages) {
  const Call whole = one_head(70, 1500);
  expect_nothing_said(on_ranks(group_of_shared_memory(2), [&](Group& group) {
    EXPECT_TRUE(has_the_bits(group, whole, [&](Options& options) {
      if (group.rank() == 1) options.kernel = "cpu.stream.scalar";
    }));
    const Split split = split_of(whole, group);
    const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
    const Call call = call_of(whole, share);
    Results results(call, {.log_sum_exp = group.rank() == 1});
    attention(group, split, call.inputs(), results.outputs(), {});
    EXPECT_TRUE(same_bits(results.out, share_of(run(whole, {}).out, share.queries, 0, 1)));
  }));
}

// A row rounds as the rank does that has it, whoever is free.
TEST(Together, ranks_that_round_differently_exchange_messages) {
  const Call whole = one_head(700, 2000);
  const auto results_over = [&](std::vector<Group> ends) {
    std::vector<std::optional<Tensor>> out(ends.size());
    expect_nothing_said(on_ranks(std::move(ends), [&](Group& group) {
      const Split split = split_of(whole, group);
      const auto rank = static_cast<std::size_t>(group.rank());
      const Call call = call_of(whole, split.of_rank[rank]);
      Results results(call, {});
      if (rank == 1) std::fesetround(FE_UPWARD);
      attention(group, split, call.inputs(), results.outputs(), {});
      std::fesetround(FE_TONEAREST);
      out[rank] = results.out;
    }));
    return out;
  };
  const auto together = results_over(group_of_shared_memory(2)),
             by_messages = results_over(group_of_threads(2));
  for (const std::size_t r : {0u, 1u}) EXPECT_TRUE(same_bits(*together[r], *by_messages[r])) << "rank " << r;
}

// Scores beyond f32 in a row of the first rank: the sentence is that of ranks that exchange messages.
TEST(Together, rows_that_leave_the_range_are_named_by_the_rank_that_has_them) {
  Call whole = one_head(60, 1500);
  for (std::int64_t d = 0; d < 8; ++d) whole.q.set(0, 0, 3, d, 1e38F), whole.k.set(0, 0, 5, d, 1e38F);
  const auto attend = [&](Group& group) { static_cast<void>(has_the_bits(group, whole)); };
  const auto said = on_ranks(group_of_shared_memory(2), attend);
  EXPECT_EQ(said, on_ranks(group_of_threads(2), attend));
  EXPECT_EQ(said[0].substr(0, said[0].find(" do not fit")),
            "queries [0, 0 + 15): finish: numbers on the way to out(0, 0, 3)");
}

// Dropout takes results of the second rank beyond f16, which is what they are: only the first has a row whose
// numbers do not fit.
TEST(Together, a_row_that_leaves_the_range_is_no_fault_of_another_rank) {
  const DType f16 = DType::f16;
  Call whole{.q = Tensor::random({1, 1, 60, 8}, 1, 1, f16),
             .k = Tensor::random({1, 1, 1500, 8}, 2, 1, f16),
             .v = Tensor({1, 1, 1500, 8}, f16)};
  whole.v.fill(60000);
  whole.dropout = Dropout{0.9F, 5};
  for (std::int64_t d = 0; d < 8; ++d) whole.q.set(0, 0, 3, d, INFINITY);
  const auto attend = [&](Group& group) { static_cast<void>(has_the_bits(group, whole)); };
  const auto said = on_ranks(group_of_shared_memory(2), attend);
  EXPECT_EQ(said, on_ranks(group_of_threads(2), attend));
  EXPECT_EQ(said[1], "");
}

// Who has no heads has nothing to say of the options, and hears of a difference like all others: it would
// wait for them.
TEST(Together, a_rank_without_heads_hears_what_the_others_differ_in) {
  const Call whole{.q = Tensor::random({1, 2, 30, 8}, 1),
                   .k = Tensor::random({1, 2, 40, 8}, 2),
                   .v = Tensor::random({1, 2, 40, 8}, 3)};
  const auto said = on_ranks(group_of_shared_memory(3, {.deadline = milliseconds(300)}), [&](Group& group) {
    const Split split = split_heads({30, 40, 2, 2}, group.size());
    const Call call = call_of(whole, split.of_rank[static_cast<std::size_t>(group.rank())]);
    Results results(call, {});
    const auto attend = [&](const Options& options) {
      attention(group, split, call.inputs(), results.outputs(), options);
    };
    try {
      attend({.softcap = group.rank() == 1 ? 7.0F : 5.0F});
    } catch (const Error&) {
      attend({});  // the group goes on
      throw;
    }
  });
  for (const std::string& sentence : said)
    EXPECT_EQ(sentence.substr(0, sentence.find(" is ")), "rank 1: options.softcap, in bits,");
}

}  // namespace
}  // namespace heed::cases
