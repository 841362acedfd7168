// SPDX-License-Identifier: Apache-2.0
// O1 over threads: a program of its own, because TSan runs it too.
#include "heed/threads.hpp"

#include <cfenv>
#include <limits>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

class ManyThreads : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, ManyThreads, testing::ValuesIn(plan_and_kernels()), test_name);

TEST_P(ManyThreads, their_number_changes_no_bit) {
  const int before = num_threads();
  for (std::uint64_t seed : seeds(1150, 1165)) {
    const Call call =
        for_kernel(GetParam(), random_call(seed, {.max_queries = 150, .max_keys = 300, .dropout = true}));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    set_num_threads(1);
    const auto one = attend(call, everything), one_bare = attend(call);
    for (int n = 2; n <= 8; n += small_selection() ? 3 : 1) {
      set_num_threads(n);
      EXPECT_TRUE(same_bits(attend(call, everything), one)) << n << " threads";
      EXPECT_TRUE(same_bits(attend(call), one_bare)) << n << " threads";
    }
  }
  set_num_threads(before);
}

// Rows enough that the last task of every thread is cut in two, and then again.
TEST_P(ManyThreads, their_last_tasks_are_shorter_and_change_no_bit) {
  const int before = num_threads();
  const Call call{.q = Tensor::random({1, 6, 1100, 8}, 1180),
                  .k = Tensor::random({1, 3, 20, 8}, 1181),
                  .v = Tensor::random({1, 3, 20, 8}, 1182)};
  set_num_threads(1);
  const auto one = attend(call);
  for (int n = 2; n <= 3; ++n) {
    set_num_threads(n);
    EXPECT_TRUE(same_bits(attend(call), one)) << n << " threads";
  }
  set_num_threads(before);
}

// The same entry so many times.
Tensor repeated(const Tensor& one, std::int64_t times) {
  const Shape s = one.shape();
  Tensor all = Tensor::random({times, s.heads, s.length, s.dim}, 1);
  for (std::int64_t b = 0; b < times; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.length; ++i)
        for (std::int64_t d = 0; d < s.dim; ++d) all.set(b, h, i, d, one.at(0, h, i, d));
  return all;
}

// So many small tasks that threads take runs of them, the last one a short one: of few queries and of many,
// which other kernels take.
TEST_P(ManyThreads, their_runs_of_small_tasks_leave_none_out) {
  constexpr std::int64_t entries = 211, heads = 2, keys = 5, dim = 8;
  const int before = num_threads();
  for (const std::int64_t queries : {3, 70}) {
    const Tensor q = Tensor::random({1, heads, queries, dim}, 1195),
                 k = Tensor::random({1, heads, keys, dim}, 1196),
                 v = Tensor::random({1, heads, keys, dim}, 1197);
    const auto alone = attend({.q = q, .k = k, .v = v});
    const Call call{.q = repeated(q, entries), .k = repeated(k, entries), .v = repeated(v, entries)};
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      const auto all = attend(call);
      ASSERT_EQ(all.has_value(), alone.has_value());
      if (!all) continue;  // the kernel refuses
      std::int64_t wrong = 0;
      for (std::int64_t b = 0; b < entries; ++b)
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t i = 0; i < queries; ++i)
            for (std::int64_t d = 0; d < dim; ++d)
              wrong += all->out.bits(b, h, i, d) != alone->out.bits(0, h, i, d) ? 1 : 0;
      EXPECT_EQ(wrong, 0) << threads << " threads, " << queries << " queries";
    }
  }
  set_num_threads(before);
}

// Several tasks for every KV head and thread, three blocks of keys, of which the first queries see one and a
// half; a value that is no number in the last.
TEST_P(ManyThreads, what_one_of_their_tasks_packs_serves_the_others_and_changes_no_bit) {
  if (GetParam() == "reference") return;  // it packs nothing
  const int before = num_threads();
  Call call{.q = Tensor::random({2, 6, 300, 8}, 1190),
            .k = Tensor::random({2, 3, 700, 8}, 1191),
            .v = Tensor::random({2, 3, 700, 8}, 1192)};
  call.v.set(0, 1, 650, 3, std::numeric_limits<float>::infinity());
  call.causal = Causal{Align::ends};
  set_num_threads(1);
  const auto one = attend(call), one_with_all = attend(call, everything);
  const int repeats = small_selection() ? 2 : 4;
  for (int n = 2; n <= 5; n += small_selection() ? 3 : 1) {
    set_num_threads(n);
    for (int repeat = 0; repeat < repeats; ++repeat)
      EXPECT_TRUE(same_bits(attend(call), one)) << n << " threads";
    EXPECT_TRUE(same_bits(attend(call, everything), one_with_all)) << n << " threads";
  }
  set_num_threads(before);
}

// The pool's threads were made in another mode.
TEST_P(ManyThreads, their_number_changes_no_bit_however_the_caller_rounds) {
  const int before = num_threads();
  for (std::uint64_t seed : seeds(1170, 1175)) {
    const Call call = random_call(seed, {.max_queries = 150, .max_keys = 300, .dropout = true});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      set_num_threads(4);
      attend(call);
      std::fesetround(mode);
      const auto four = attend(call, everything);
      set_num_threads(1);
      const auto one = attend(call, everything);
      std::fesetround(FE_TONEAREST);
      EXPECT_TRUE(same_bits(four, one)) << "mode " << mode;
    }
  }
  set_num_threads(before);
}

TEST(Check, says_the_same_with_any_number_of_threads) {
  const int before = num_threads();
  for (std::uint64_t seed : seeds(1170, 1180)) {
    const Call call = random_call(seed, {.max_queries = 20, .max_keys = 50});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Results got = run(call, everything);
    set_num_threads(1);
    const Check alone = check(call.inputs(), got.outputs(), call.options());
    EXPECT_EQ(alone.beyond_bound, 0) << alone.first_miss;
    for (int n : {2, 5}) {
      set_num_threads(n);
      const Check shared = check(call.inputs(), got.outputs(), call.options());
      EXPECT_EQ(shared.compared, alone.compared) << n << " threads";
      EXPECT_EQ(shared.worst_error, alone.worst_error) << n << " threads";
      EXPECT_EQ(shared.worst_error_in_bounds, alone.worst_error_in_bounds) << n << " threads";
    }
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace heed::cases
