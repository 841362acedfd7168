// SPDX-License-Identifier: Apache-2.0
// Numbers at the ends of f32's range, infinities and NaN that queries do see (S13, G9): every kernel says
// what the reference says, and says it when it accumulates as well.
#include <cmath>
#include <limits>

#include "cases/backward.hpp"
#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/check.hpp"
#include "heed/threads.hpp"

namespace heed::cases {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(),
                nan = std::numeric_limits<float>::quiet_NaN();

class ExtremeGradient : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, ExtremeGradient, testing::ValuesIn(backward_kernel_names()), test_name);

// A few elements of one operand, anywhere.
void spoil(Tensor& x, Dice& dice, bool is_log_sum_exp = false) {
  const Shape& s = x.shape();
  if (s.elements() == 0) return;
  const float largest = x.dtype() == DType::f16 ? 65504.0f : 3e38f;
  for (std::int64_t n = dice.between(1, 4); n > 0; --n) {
    const std::int64_t b = dice.between(0, s.batch - 1), h = dice.between(0, s.heads - 1),
                       i = dice.between(0, s.length - 1), d = dice.between(0, s.dim - 1);
    const float chosen = dice.pick<float>({nan, infinity, -infinity, largest, -largest, largest / 1e3f});
    // None is far below a score that it is over.
    x.set(b, h, i, d, is_log_sum_exp ? std::abs(chosen) : chosen);
  }
}

BackwardCall spoiled(Call call, std::uint64_t seed) {
  Dice dice(seed ^ 0xE17u);
  std::vector<Tensor*> inputs{&call.q, &call.k, &call.v};
  if (call.bias) inputs.push_back(&*call.bias);
  if (call.sink) inputs.push_back(&*call.sink);
  const bool is_input = dice.one_in(2);
  if (is_input) spoil(*dice.pick(inputs), dice);
  BackwardCall made(call, seed);
  if (is_input) return made;
  Tensor& x = *dice.pick<Tensor*>({&made.out, &made.log_sum_exp, &made.out_gradient});
  spoil(x, dice, &x == &made.log_sum_exp);
  return made;
}

TEST_P(ExtremeGradient, is_what_the_reference_says) {
  Taken taken;
  for (const std::uint64_t seed : seeds(1, 300)) {
    const Call call = for_kernel(
        GetParam(),
        random_call(seed, {.max_queries = 30, .max_keys = 60, .long_keys = false, .dropout = true}));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const BackwardCall backward = spoiled(call, seed);
    auto got = gradients_of(backward, GetParam());
    taken.count(call, got.has_value());
    if (!got) continue;
    const Check result =
        check(backward.call.inputs(), backward.saved(), got->views(backward), backward.call.options());
    ASSERT_EQ(result.beyond_bound, 0) << result.first_miss;
  }
  EXPECT_TRUE(taken.enough()) << taken.some << " of " << taken.tried;
}

TEST_P(ExtremeGradient, is_added_to_what_is_there_where_it_accumulates) {
  for (const std::uint64_t seed : seeds(400, 460)) {
    const Call call =
        random_call(seed, {.max_queries = 30, .max_keys = 60, .long_keys = false, .halves = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const BackwardCall backward = spoiled(call, seed);
    const auto fresh = gradients_of(backward, GetParam());
    if (!fresh) continue;
    BackwardResults added(backward);
    added.accumulate = true;
    for (const Of of : every_gradient)
      if (added[of]) added[of]->fill(1.0f);
    differentiate(backward, added, GetParam());
    for (const Of of : every_gradient)
      if (added[of])
        for_each(added[of]->shape(), [&](auto b, auto h, auto i, auto d) {
          const float one = (*fresh)[of]->at(b, h, i, d), expected = 1.0f + one,
                      found = added[of]->at(b, h, i, d);
          // What the reference computes it adds before it rounds: two roundings apart at the most.
          const bool same = found == expected ||
                            std::abs(found - expected) <= 0x1p-23f * (1 + std::abs(one)) ||
                            (std::isnan(found) && std::isnan(expected));
          EXPECT_TRUE(same) << name_of(of) << Place{b, h, i, d} << ": " << found << " and " << expected;
        });
    if (HasFailure()) return;
  }
}

// The reciprocal of such a softcap is beyond f32, and the scores that it bends are not 0.
TEST_P(ExtremeGradient, under_a_softcap_below_normal_numbers_is_what_the_reference_says) {
  Call call{.q = Tensor({1, 2, 3, 4}), .k = Tensor({1, 2, 50, 4}), .v = Tensor::random({1, 2, 50, 4}, 1)};
  call.q.fill(0.25f);
  Dice dice(7);
  for_each(call.k.shape(), [&](auto b, auto h, auto j, auto d) {
    call.k.set(b, h, j, d, 1e-42f * static_cast<float>(dice.between(-900, 900)));
  });
  call.softcap = 1e-40f;
  const BackwardCall backward(call, 3);
  auto got = gradients_of(backward, GetParam());
  if (!got) got = gradients_of(backward);  // whoever refuses leaves it to another
  const Check result =
      check(backward.call.inputs(), backward.saved(), got->views(backward), backward.call.options());
  EXPECT_EQ(result.beyond_bound, 0) << result.first_miss;
}

// Where all values are alike the gradient by q is 0, which large numbers cancel to: what is left of those may
// be beyond f16. Where numbers are small, it may not.
TEST(CheckOfGradients, takes_an_infinity_where_its_bound_reaches_beyond_the_type) {
  for (const float largest : {6e4f, 1.0f}) {
    Call call{.q = Tensor({1, 1, 2, 8}, DType::f16),
              .k = Tensor::random({1, 1, 5, 8}, 2, largest, DType::f16),
              .v = Tensor({1, 1, 5, 8}, DType::f16)};
    call.q.fill(0.0f), call.v.fill(largest);
    BackwardCall backward(call, 3);
    backward.out_gradient.fill(largest);
    auto got = gradients_of(backward, "reference", DType::f16);
    const auto misses_with = [&](float x) {
      (*got)[Of::q]->set(0, 0, 1, 3, x);
      return check(backward.call.inputs(), backward.saved(), got->views(backward), backward.call.options())
          .beyond_bound;
    };
    EXPECT_EQ(misses_with(-infinity), largest > 1 ? 0 : 1);
    EXPECT_EQ(misses_with(nan), 1);
  }
}

// Scores of 0 whose sums leave f32's range on the way there: what they reach is the reference's. Rows are
// packed once, and whoever comes to them with a later block of keys, in the same task or in another, must
// know it of them.
TEST_P(ExtremeGradient, a_sum_that_leaves_the_range_is_found_in_every_block) {
  Call call{Tensor::random({1, 1, 900, 4}, 1, 1), Tensor({1, 1, 700, 4}),
            Tensor::random({1, 1, 700, 4}, 2, 1)};
  call.k.fill(1.0f);
  for (const std::int64_t i : {7, 850})
    for (std::int64_t d = 0; d < 4; ++d) call.q.set(0, 0, i, d, d < 2 ? -3e38f : 3e38f);
  const BackwardCall backward(call, 3);
  const auto expected = gradients_of(backward, "reference");
  const int before = num_threads();
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const auto got = gradients_of(backward, GetParam());
    if (!got) break;
    for (const Of of : {Of::k, Of::v})
      EXPECT_TRUE(same_bits(*(*expected)[of], *(*got)[of])) << name_of(of) << ", " << threads << " threads";
  }
  set_num_threads(before);
}

// By their width values have no say in a score, so that gradients by the log-sum-exp are all there is.
TEST(GradientsOfValuesWithoutDimensions, are_those_by_the_log_sum_exp) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const std::string& kernel : [] {
           std::vector<std::string> names = backward_kernel_names();
           names.insert(names.begin(), "");
           return names;
         }()) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + kernel);
      Call call{Tensor::random({2, 4, 5, 8}, 1, 1, dtype), Tensor::random({2, 2, 19, 8}, 2, 1, dtype),
                Tensor({2, 2, 19, 0}, dtype)};
      call.bias = Tensor::random({1, 4, 5, 19}, 3);
      call.sink = Tensor::random({1, 4, 1, 1}, 4);
      const BackwardCall backward(call, 5, true);
      auto got = gradients_of(backward, kernel);
      if (!got) continue;
      const Check result = check(call.inputs(), backward.saved(), got->views(backward), call.options());
      EXPECT_EQ(result.beyond_bound, 0) << result.first_miss;
    }
}

}  // namespace
}  // namespace heed::cases
