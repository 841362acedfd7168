// SPDX-License-Identifier: Apache-2.0
// Laws of the numbers themselves (S1, S2, S5, S12): averages, sums, copies, caps, sinks, stages.
#include <cmath>
#include <limits>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

class Values : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, Values, testing::ValuesIn(plan_and_kernels()), test_name);

TEST_P(Values, equal_keys_give_the_mean_of_v) {
  for (std::int64_t keys : {1, 2, 3, 8, 64, 100, 128, 256, 300}) {
    Call call{
        .q = Tensor::random({2, 2, 5, 8}, 1, 4), .k = Tensor({2, 1, keys, 8}), .v = Tensor({2, 1, keys, 7})};
    for_each(call.k.shape(), [&](auto b, auto h, auto j, auto d) {
      call.k.set(b, h, j, d, uniform(2, static_cast<std::uint64_t>(d)));
    });
    // Small integers: their sum is exact, and so is its quotient when the number of keys is a power of two.
    for_each(call.v.shape(), [&](auto b, auto h, auto j, auto d) {
      call.v.set(b, h, j, d, static_cast<float>((j * 7 + d * 3) % 32 - 11));
    });
    const auto got = attend(call);
    if (!got) continue;
    const bool exact = (keys & (keys - 1)) == 0;
    for_each(got->out.shape(), [&](auto b, auto h, auto i, auto d) {
      double sum = 0, magnitude = 0;
      for (std::int64_t j = 0; j < keys; ++j)
        sum += call.v.at(b, 0, j, d), magnitude += std::abs(call.v.at(b, 0, j, d));
      const double n = static_cast<double>(keys),
                   bound = exact ? 0 : gamma(2 * n + 8, f32_roundoff) * magnitude / n;
      EXPECT_NEAR(got->out.at(b, h, i, d), sum / n, bound) << keys << " keys";
    });
  }
}

TEST_P(Values, a_key_that_outweighs_all_others_copies_its_value) {
  for (std::int64_t keys : {1, 7, 65, 257}) {
    Call call{.q = Tensor({1, 1, keys, keys}),
              .k = Tensor({1, 1, keys, keys}),
              .v = Tensor::random({1, 1, keys, 9}, 5),
              .scale = 1.0f};
    for (std::int64_t i = 0; i < keys; ++i) call.q.set(0, 0, i, i, 1e3f), call.k.set(0, 0, i, i, 1);
    const auto got = attend(call, everything);
    if (!got) continue;
    EXPECT_TRUE(same_bits(got->out, call.v)) << keys << " keys";
    for_each(got->weights->shape(), [&](auto b, auto h, auto i, auto j) {
      EXPECT_EQ(got->weights->at(b, h, i, j), i == j ? 1.0f : 0.0f);
    });
  }
}

TEST_P(Values, the_weights_of_each_row_sum_to_one) {
  for (std::uint64_t seed : seeds(700, 730)) {
    const Call call = random_call(seed, {.sink = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto got = attend(call, everything);
    if (!got) continue;
    for_each({call.batch(), call.heads(), call.queries(), 1}, [&](auto b, auto h, auto i, auto) {
      double sum = 0;
      for (std::int64_t j = 0; j < call.keys(); ++j) {
        const float w = got->weights->at(b, h, i, j);
        EXPECT_TRUE(w >= 0 && w <= 1 + 0x1p-20f) << w;
        sum += w;
      }
      // Each weight is one division away from the sum it was made of.
      const double bound = gamma(2 * static_cast<double>(call.keys()) + 8, f32_roundoff);
      EXPECT_NEAR(sum, call.sees_any(b, h, i) ? 1 : 0, bound) << "row " << b << ' ' << h << ' ' << i;
    });
  }
}

TEST_P(Values, a_sink_takes_its_share_of_the_sum) {
  for (std::uint64_t seed : seeds(740, 760)) {
    Call call = random_call(seed, {.sink = false});
    call.sink = Tensor::random({1, call.heads(), 1, 1}, seed, 8);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto got = attend(call, everything);
    if (!got) continue;
    EXPECT_TRUE(against_oracle(call, *got, f32_roundoff));
    call.sink->fill(-std::numeric_limits<float>::infinity());  // no share at all
    const auto none = attend(call, everything);
    call.sink.reset();
    EXPECT_TRUE(same_bits(none, attend(call, everything)));
  }
}

TEST_P(Values, a_huge_softcap_is_none_within_the_bound) {
  for (std::uint64_t seed : seeds(770, 785)) {
    Call call = random_call(seed, {.softcap = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const Call plain = call;
    call.softcap = 1e6f;  // tanh(x) = x - x^3/3: scores below 100 move by less than 4e-7
    const auto got = attend(call, everything);
    if (!got) continue;
    Results capped = *got;
    Tally tally = against_oracle(call, capped, f32_roundoff);
    EXPECT_TRUE(tally);
    tally = against_oracle(plain, capped, 8 * f32_roundoff);
    EXPECT_TRUE(tally);
  }
}

// c * tanh(s / c) is then at most c, which no weight can show; its reciprocal is no float.
TEST_P(Values, a_tiny_softcap_leaves_every_key_the_same_weight) {
  for (const float cap : {1e-30f, 1e-38f, 2e-39f, 1e-40f, 1e-45f}) {
    Call call{.q = Tensor::random({1, 2, 5, 8}, 1, 4),
              .k = Tensor::random({1, 2, 16, 8}, 2, 4),
              .v = Tensor({1, 2, 16, 8})};
    for (std::int64_t d = 0; d < 8; ++d) call.q.set(0, 0, 0, d, 0);  // scores of 0, too
    call.v.fill(3);
    call.softcap = cap;
    const auto got = attend(call);
    if (!got) return;
    for_each(got->out.shape(),
             [&](auto b, auto h, auto i, auto d) { EXPECT_EQ(got->out.at(b, h, i, d), 3) << cap; });
  }
}

TEST_P(Values, a_softcap_bounds_every_score) {
  Call call{.q = Tensor::random({1, 2, 6, 16}, 1, 512),
            .k = Tensor::random({1, 2, 40, 16}, 2, 512),
            .v = Tensor::random({1, 2, 40, 16}, 3),
            .softcap = 20.0f};
  const auto got = attend(call, {.weights = true, .log_sum_exp = true, .scores = Stage::softcapped});
  if (!got) return;
  for_each(call.score_shape(),
           [&](auto b, auto h, auto i, auto j) { EXPECT_LE(std::abs(got->scores->at(b, h, i, j)), 20.0f); });
  EXPECT_TRUE(against_oracle(call, *got, f32_roundoff));
}

TEST_P(Values, every_stage_of_the_scores_equals_brute_force) {
  for (std::uint64_t seed : seeds(800, 830)) {
    const Call call = random_call(seed);
    for (Stage stage : {Stage::raw, Stage::softcapped, Stage::biased}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", stage " + std::to_string(static_cast<int>(stage)) +
                   ": " + describe(call));
      const auto got = attend(call, {.scores = stage});
      if (!got) continue;
      EXPECT_TRUE(against_oracle(call, *got, f32_roundoff));
    }
  }
}

TEST_P(Values, a_zero_scale_averages_and_a_negative_scale_reverses_the_order) {
  Call call{.q = Tensor::random({1, 1, 4, 8}, 1, 4),
            .k = Tensor::random({1, 1, 16, 8}, 2, 4),
            .v = Tensor::random({1, 1, 16, 8}, 3)};
  Call negated = call;
  for_each(call.q.shape(),
           [&](auto b, auto h, auto i, auto d) { negated.q.set(b, h, i, d, -call.q.at(b, h, i, d)); });
  call.scale = -0.25f;
  negated.scale = 0.25f;
  EXPECT_TRUE(same_bits(attend(call, everything), attend(negated, everything)));
  call.scale = 0.0f;
  const auto mean = attend(call, everything);
  if (!mean) return;
  for_each(call.score_shape(),
           [&](auto b, auto h, auto i, auto j) { EXPECT_EQ(mean->weights->at(b, h, i, j), 0.0625f); });
}

TEST_P(Values, adding_a_constant_to_all_scores_changes_nothing_beyond_the_bound) {
  for (float constant : {-1e4f, -100.0f, 100.0f, 1e4f}) {
    Call call{.q = Tensor::random({1, 2, 5, 16}, 1, 4),
              .k = Tensor::random({1, 2, 70, 16}, 2, 4),
              .v = Tensor::random({1, 2, 70, 16}, 3)};
    call.bias = Tensor({1, 1, 1, 1});
    call.bias->fill(constant);
    const auto got = attend(call, everything);
    if (got) {
      EXPECT_TRUE(against_oracle(call, *got, f32_roundoff)) << constant;
    }
  }
}

TEST_P(Values, attention_is_linear_in_v_exactly_for_powers_of_two) {
  for (std::uint64_t seed : seeds(840, 850)) {
    const Call call = random_call(seed, {.halves = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Call doubled = call;
    for_each(call.v.shape(), [&](auto b, auto h, auto j, auto d) {
      doubled.v.set(b, h, j, d, -1024 * call.v.at(b, h, j, d));
    });
    const auto once = attend(call), got = attend(doubled);
    if (!once || !got) continue;
    std::int64_t wrong = 0;
    for_each(got->out.shape(), [&](auto b, auto h, auto i, auto d) {
      wrong += got->out.at(b, h, i, d) != -1024 * once->out.at(b, h, i, d);
    });
    EXPECT_EQ(wrong, 0);
  }
}

}  // namespace
}  // namespace heed::cases
