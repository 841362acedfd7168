// SPDX-License-Identifier: Apache-2.0
// Every kernel for gradients, forced by name, is within the computed bound of the reference: on random
// problems over all options, around the edges of tiles and blocks, and where scores are far from 0.
#include <cmath>

#include "cases/backward.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

class GradientKernel : public testing::TestWithParam<std::string> {
 protected:
  // Whether the kernel took the problem.
  bool judge(const BackwardCall& backward, std::optional<DType> dtype = {}) {
    auto got = gradients_of(backward, GetParam(), dtype);
    if (!got) return false;
    const Check result =
        check(backward.call.inputs(), backward.saved(), got->views(backward), backward.call.options());
    EXPECT_EQ(result.beyond_bound, 0) << result.first_miss;
    worst = std::max(worst, result.worst_error_in_bounds);
    compared += result.compared;
    return true;
  }
  void judge_remainders(DType);

  double worst = 0;
  std::int64_t compared = 0;
};

std::vector<std::string> fast_kernels() {
  std::vector<std::string> names = backward_kernel_names();
  names.pop_back();  // the reference
  return names;
}
INSTANTIATE_TEST_SUITE_P(Kernels, GradientKernel, testing::ValuesIn(fast_kernels()), test_name);

TEST_P(GradientKernel, every_random_problem_is_within_the_stated_bound) {
  Taken taken;
  for (const std::uint64_t seed : seeds(1, 1101)) {
    const Call call = for_kernel(GetParam(), random_call(seed, {.dropout = true}));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Dice dice(seed ^ 0xACEu);
    const auto dtype = dice.one_in(3) ? std::optional(DType::f32) : std::nullopt;
    taken.count(call, judge(BackwardCall(call, seed ^ 0xD0u, dice.one_in(3)), dtype));
    if (HasFailure()) return;
  }
  EXPECT_TRUE(taken.enough()) << taken.some << " of " << taken.tried;
  RecordProperty("worst_error_in_bounds", std::to_string(worst));
}

// Tiles have up to 48 rows and 32 columns, blocks 96 rows and 192 keys. In bf16 and f64 besides: some kernels
// take nothing else.
TEST_P(GradientKernel, every_remainder_of_a_tile_and_a_block_is_within_the_stated_bound) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    SCOPED_TRACE(heed::name_of(dtype));
    judge_remainders(dtype);
  }
  EXPECT_GT(compared, 100000);
}

void GradientKernel::judge_remainders(DType dtype) {
  const auto plain = [dtype](std::int64_t queries, std::int64_t keys, std::int64_t dim, std::uint64_t seed) {
    return Call{.q = Tensor::random({1, 2, queries, dim}, seed, 2, dtype),
                .k = Tensor::random({1, 1, keys, dim}, seed + 1, 2, dtype),
                .v = Tensor::random({1, 1, keys, dim + 3}, seed + 2, 2, dtype)};
  };
  for (std::int64_t n = 1; n <= 50; ++n) {
    SCOPED_TRACE(n);
    judge(BackwardCall(plain(n, 51 - n, 5, 100), 1));
    judge(BackwardCall(plain(3, 9, n, 200), 2));
    judge(BackwardCall(plain(n, 51 - n, 0, 400), 4));
    Call causal = plain(n, n, 4, 300);
    causal.causal = Causal{};
    judge(BackwardCall(causal, 3));
  }
  for (const std::int64_t queries : {47, 48, 49, 95, 96, 97})
    for (const std::int64_t keys : {191, 192, 193, 385}) {
      SCOPED_TRACE(std::to_string(queries) + " queries, " + std::to_string(keys) + " keys");
      Call causal = plain(queries, keys, 8, 400);
      judge(BackwardCall(causal, 4));
      causal.causal = Causal{Align::ends};
      judge(BackwardCall(causal, 5));
      causal.causal.reset();
      causal.window = Window{30, 3, Align::ends, 5};
      judge(BackwardCall(causal, 6));
    }
}

TEST_P(GradientKernel, scores_far_from_zero_are_within_the_stated_bound) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const float shift : {-1000.0f, -88.0f, 88.0f, 1000.0f, -1e6f, 1e6f}) {
      SCOPED_TRACE(shift);
      Call call{.q = Tensor::random({1, 2, 13, 16}, 1, 2, dtype),
                .k = Tensor::random({1, 2, 65, 16}, 2, 2, dtype),
                .v = Tensor::random({1, 2, 65, 16}, 3, 2, dtype),
                .bias = Tensor({1, 1, 1, 65})};
      for (std::int64_t j = 0; j < 65; ++j)
        call.bias->set(0, 0, 0, j, shift + 0.25f * static_cast<float>(j % 5));
      judge(BackwardCall(call, 4, true));
    }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace heed::cases
