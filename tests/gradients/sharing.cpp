// SPDX-License-Identifier: Apache-2.0
// Problems whose tasks share sums: long enough, and with too few KV heads to keep the threads busy. However
// they are cut and whoever runs them, no bit changes (O1).
#include <algorithm>
#include <array>
#include <thread>

#include "cases/backward.hpp"
#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "cpu/schedule/tasks.hpp"
#include "heed/threads.hpp"

namespace heed::cases {
namespace {

class LongGradient : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, LongGradient, testing::ValuesIn([] {
                           std::vector<std::string> names = backward_kernel_names();
                           std::erase(names, "reference");  // which has no tasks
                           return names;
                         }()),
                         test_name);

// Rows and keys by the hundred share sums where 1 or 3 KV heads meet 2 or 4 threads; where 5 meet 2, the last
// 3 do. One in four has few rows and many keys, which are tasks of their own.
Call long_call(std::uint64_t seed) {
  Dice dice(seed);
  const bool is_flat = seed % 4 == 0;
  const std::int64_t kv_heads = is_flat || dice.one_in(2) ? 1 : dice.pick<std::int64_t>({3, 5}),
                     heads = kv_heads * dice.between(1, 2),
                     queries = is_flat ? dice.between(1, 30) : dice.between(600, 900),
                     keys = is_flat ? dice.between(2500, 3300) : dice.between(580, 900),
                     dim = dice.pick<std::int64_t>({3, 8, 17});
  const DType dtype = dice.one_in(2) ? DType::bf16 : DType::f32;
  Call call{.q = Tensor::random({1, heads, queries, dim}, 3 * seed, 4, dtype),
            .k = Tensor::random({1, kv_heads, keys, dim}, 3 * seed + 1, 2, dtype),
            .v = Tensor::random({1, kv_heads, keys, dim}, 3 * seed + 2, 2, dtype)};
  add_random_masks(dice, call);
  return call;
}

// Every task on a thread of its own, the last first.
struct Backwards : Executor {
  int concurrency() const override { return 2; }
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    std::vector<std::thread> threads;
    for (std::size_t i = tasks; i-- > 0;) threads.emplace_back([=] { task(context, i); });
    for (std::thread& thread : threads) thread.join();
  }
};

class Restored {
 public:
  ~Restored() { set_executor(nullptr), set_num_threads(before_); }

 private:
  int before_ = num_threads();
};

void expect_same(const BackwardResults& a, const BackwardResults& b, const std::string& by) {
  for (const Of of : {Of::q, Of::k, Of::v})
    EXPECT_TRUE(same_bits(*a[of], *b[of])) << name_of(of) << " by " << by;
}

TEST_P(LongGradient, is_that_of_one_task) {
  const Restored restored;
  Backwards executor;
  for (const std::uint64_t seed : seeds(1, 12)) {
    const Call call = long_call(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const BackwardCall backward(call, seed);
    set_num_threads(1);
    const auto one = gradients_of(backward, GetParam());
    if (!one) continue;
    for (const int threads : {2, 4}) {
      set_num_threads(threads);
      expect_same(*one, *gradients_of(backward, GetParam()), std::to_string(threads) + " threads");
    }
    set_executor(&executor);
    expect_same(*one, *gradients_of(backward, GetParam()), "an executor");
    set_executor(nullptr);
    if (HasFailure()) return;
  }
}

// Blocks of keys that other tasks have packed are as large as they were: scores beyond f32 are noticed by
// whoever meets them.
TEST_P(LongGradient, of_keys_whose_scores_leave_the_range_is_that_of_one_task) {
  const Restored restored;
  for (const std::uint64_t seed : seeds(1, 4)) {
    Call call{.q = Tensor::random({1, 1, 700, 8}, 3 * seed, 4),
              .k = Tensor::random({1, 1, 700, 8}, 3 * seed + 1, 2),
              .v = Tensor::random({1, 1, 700, 8}, 3 * seed + 2, 2)};
    for (std::int64_t d = 0; d < 8; ++d) call.k.set(0, 0, 300 + static_cast<std::int64_t>(seed), d, 3e38f);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const BackwardCall backward(call, seed);
    set_num_threads(1);
    const auto one = gradients_of(backward, GetParam());
    if (!one) continue;  // a kernel of other types
    set_num_threads(2);
    expect_same(*one, *gradients_of(backward, GetParam()), "2 threads");
  }
}

cpu::GradientCut cut(std::int64_t kv_heads, std::int64_t queries, std::int64_t keys, int threads) {
  set_num_threads(threads);
  const Sequence sequence{.queries = queries, .keys = keys};
  float number = 0;
  cpu::GradientCall g;
  g.forward.batch = 1, g.forward.heads = g.forward.kv_heads = kv_heads;
  g.forward.queries = queries, g.forward.keys = keys, g.forward.dim = g.forward.value_dim = 64;
  g.forward.sequences = &sequence;
  g.q.data = g.k.data = g.v.data = &number;
  return cpu::cut_gradients(g);
}

// What the test above is about does happen: 1 KV head on 2 threads, 3 on 2 and on 4; 2 on 2, of which one
// thread may be slower; but not where there is one thread, nor a short one.
TEST(GradientCuts, share_sums_where_threads_would_be_idle) {
  const Restored restored;
  const auto shares = [](std::int64_t kv_heads, std::int64_t length, int threads) {
    return !cut(kv_heads, length, length, threads).grids.empty();
  };
  EXPECT_TRUE(shares(1, 600, 2));
  EXPECT_TRUE(shares(3, 600, 2));
  EXPECT_TRUE(shares(3, 600, 4));
  EXPECT_TRUE(shares(12, 1024, 16));
  EXPECT_TRUE(shares(2, 600, 2));
  EXPECT_FALSE(shares(4, 600, 1));
  EXPECT_FALSE(shares(1, 100, 2));
  EXPECT_FALSE(shares(1, 600, 16));
}

TEST(GradientCuts, leave_each_thread_whole_heads_before_those_that_are_shared) {
  const Restored restored;
  for (const auto& [kv_heads, threads, whole] :
       {std::array{12, 2, 10}, {5, 2, 2}, {4, 2, 2}, {3, 2, 0}, {40, 16, 16}}) {
    const cpu::GradientCut made = cut(kv_heads, 1024, 1024, threads);
    ASSERT_EQ(std::ssize(made.grids), kv_heads);
    EXPECT_EQ(made.times.size(), made.parts.size());
    EXPECT_EQ(std::ranges::count(made.parts, false, &cpu::GradientPart::is_shared), whole);
    for (int head = 0; head < whole; ++head)
      EXPECT_EQ(made.parts[static_cast<std::size_t>(head)].kv_head, head) << "in front, and once";
  }
}

// Sums are for all keys as much as for all rows: few rows over very many keys would share 512 MiB of them.
// And the list of cells has an end, however many threads there are.
TEST(GradientCuts, share_no_more_than_a_call_may_take) {
  const Restored restored;
  EXPECT_FALSE(cut(1, 60'000, 60'000, 16).grids.empty());
  EXPECT_TRUE(cut(1, 90'000, 90'000, 16).grids.empty());
  EXPECT_TRUE(cut(1, 3000, 1'000'000, 2).grids.empty());
  EXPECT_TRUE(cut(1, 131'072, 131'072, 128).grids.empty());
  for (const int threads : {32, 64, 128, 256})
    EXPECT_LT(cut(1, 60'000, 60'000, threads).parts.size(), 140'000u);
}

}  // namespace
}  // namespace heed::cases
