// SPDX-License-Identifier: Apache-2.0
// Laws at the ends of the range (S3, S13): whatever a call holds, every kernel says what the specification
// says.
#include "cases/extremes.hpp"

#include <cmath>
#include <limits>
#include <sstream>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/selection.hpp"
#include "heed/check.hpp"
#include "laws/cached.hpp"

namespace heed::cases {
namespace {

class Extremes : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, Extremes, testing::ValuesIn(plan_and_kernels()), test_name);

constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
// One tile, one chunk, and several.
constexpr std::int64_t lengths[] = {4, 64, 2048};

bool equal(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

testing::AssertionResult equal(const Tensor& found, const Tensor& expected) {
  std::int64_t differ = 0;
  std::ostringstream first;
  for_each(found.shape(), [&](auto b, auto h, auto i, auto d) {
    if (equal(found.at(b, h, i, d), expected.at(b, h, i, d)) || differ++ > 0) return;
    first << Place{b, h, i, d} << " is " << found.at(b, h, i, d) << ", the reference says "
          << expected.at(b, h, i, d);
  });
  if (differ == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << differ << " elements differ, first " << first.str();
}

// With the small selection one of four over several chunks, which take nearly all the time.
template <class Visit>
void for_each_extreme(Visit visit) {
  std::int64_t number = 0;
  for (const DType dtype : dtypes)
    for (const std::int64_t keys : lengths)
      for (const Extreme& extreme : extremes(dtype, keys)) {
        if (small_selection() && keys > 1024 && ++number % 4 != 0) continue;
        SCOPED_TRACE(extreme.name + ", " + name_of(dtype) + ", " + std::to_string(keys) + " keys");
        visit(extreme);
      }
}

TEST_P(Extremes, out_and_weights_are_what_the_reference_says) {
  for_each_extreme([&](const Extreme& extreme) {
    for (const Wants& wants : {Wants{}, everything}) {
      const auto found = attend(extreme.call, wants);
      if (!found) return;
      const Results expected = run(extreme.call, wants, "reference");
      EXPECT_TRUE(equal(found->out, expected.out));
      if (wants.weights) {
        EXPECT_TRUE(equal(*found->weights, *expected.weights)) << "in weights";
      }
      // An exact answer of sums beyond a thousand keys with a sink has no 24 bits.
      if (!extreme.call.sink || !std::isfinite(extreme.first)) {
        EXPECT_TRUE(equal(found->out.at(0, 0, 0, 0), extreme.first))
            << "out is " << found->out.at(0, 0, 0, 0) << ", by hand " << extreme.first;
      }
    }
  });
}

// How a tensor lies whose transpose is packed.
Tensor transposed(const Tensor& t) {
  const Shape s = t.shape();
  return t.laid_out({s.heads * s.length * s.dim, s.length * s.dim, 1, s.length});
}

TEST_P(Extremes, it_does_not_matter_how_keys_and_values_lie) {
  for_each_extreme([&](const Extreme& extreme) {
    Call other = extreme.call;
    other.k = transposed(other.k);
    other.v = transposed(other.v);
    const auto found = attend(other), expected = attend(extreme.call);
    if (found) {
      EXPECT_TRUE(equal(found->out, expected->out));
    }
  });
}

TEST_P(Extremes, it_does_not_matter_whether_a_cache_holds_them) {
  for_each_extreme([&](const Extreme& extreme) {
    const Call& call = extreme.call;
    const auto expected = attend(call);
    if (!expected) return;
    const Shape k = call.k.shape();
    KvCache cache(
        {.kv_heads = k.heads, .capacity = k.length, .dim = k.dim, .type = cache_type(call.k.dtype())});
    cache.append(call.k.view(), call.v.view());
    Results found(call, {});
    attention({.q = call.q.view(), .cache = &cache}, found.outputs(), call.options(GetParam()));
    EXPECT_TRUE(equal(found.out, expected->out));
  });
}

TEST_P(Extremes, the_log_sum_exp_is_what_the_reference_says) {
  for_each_extreme([&](const Extreme& extreme) {
    auto found = attend(extreme.call, everything);
    if (!found) return;
    const Check judged = check(extreme.call.inputs(), found->outputs(), extreme.call.options());
    EXPECT_EQ(judged.beyond_bound, 0) << judged.first_miss;
    const Results expected = run(extreme.call, everything, "reference");
    for_each(found->log_sum_exp->shape(), [&](auto b, auto h, auto i, auto d) {
      const float a = found->log_sum_exp->at(b, h, i, d), z = expected.log_sum_exp->at(b, h, i, d);
      EXPECT_TRUE(equal(a, z) || std::abs(a - z) <= 4 * 0x1p-24f * std::abs(z) + 0x1p-20f)
          << a << " and " << z;
    });
  });
}

// Keys differ by less than a sum of f32 can tell, which times 1e30 decides who wins: to f32 every answer is
// as good as any other.
TEST_P(Extremes, scores_too_large_for_their_last_bits_are_not_called_wrong) {
  for (const DType dtype : dtypes)
    for (const float scale : {1e4f, 1e8f, 1e30f}) {
      Call call{.q = Tensor::random({1, 2, 9, 20}, 1, 1, dtype),
                .k = Tensor::random({1, 1, 300, 20}, 2, 1, dtype),
                .v = Tensor::random({1, 1, 300, 8}, 3, 1, dtype)};
      call.scale = scale;
      call.q.fill(0.3f);
      for_each(call.k.shape(), [&](auto b, auto h, auto j, auto d) {
        const float faint = 1 + static_cast<float>(j) * 0x1p-23f;
        call.k.set(b, h, j, d, d == 0 ? 4096.0f : d == 1 ? faint : 0.0f);
      });
      auto found = attend(call, everything);
      if (!found) continue;
      const Check judged = check(call.inputs(), found->outputs(), call.options());
      EXPECT_EQ(judged.beyond_bound, 0) << judged.first_miss << ", scale " << scale;
    }
}

// Between 2^-16 and 1 the scale is applied to differences of scores, beyond to queries; a sink is no
// difference.
TEST_P(Extremes, scales_of_every_size_and_sign_are_within_the_bound) {
  for (const int exponent : {-100, -30, -17, -16, -15, -3, -1, 0, 1, 30, 100})
    for (const float scale : {std::ldexp(1.3f, exponent), std::ldexp(-1.0f, exponent)})
      for (const bool has_sink : {false, true}) {
        Call call{.q = Tensor::random({1, 2, 9, 20}, 1),
                  .k = Tensor::random({1, 1, 300, 20}, 2),
                  .v = Tensor::random({1, 1, 300, 8}, 3)};
        for_each(call.q.shape(), [&](auto b, auto h, auto i, auto d) {
          call.q.set(b, h, i, d, call.q.at(b, h, i, d) * 12 / scale);
        });
        call.scale = scale;
        if (has_sink) call.sink = Tensor::random({1, 2, 1, 1}, 4, 30);
        auto found = attend(call, everything);
        if (!found) continue;
        const Check judged = check(call.inputs(), found->outputs(), call.options());
        EXPECT_EQ(judged.beyond_bound, 0)
            << judged.first_miss << ", scale " << scale << (has_sink ? ", sink" : "");
      }
}

// A product and ALiBi's part may leave the range of f32 together and a bias bring them back, or take them all
// equally far.
TEST_P(Extremes, alibi_and_a_bias_beyond_the_range_are_what_the_reference_says) {
  for (const float bias : {4e33f, -2e33f, 0.0f}) {
    Call call{.q = Tensor({1, 1, 1, 4}), .k = Tensor({1, 1, 3, 4}), .v = Tensor::random({1, 1, 3, 4}, 1)};
    call.q.set(0, 0, 0, 0, 0x1p64f);
    for (std::int64_t j = 0; j < 3; ++j) call.k.set(0, 0, j, 0, -0x1.ep63f);
    call.scale = 0x1p-16f;
    call.alibi = Slopes{.of_heads = {1.2e33f}, .align = Align::starts};
    if (bias != 0) {
      call.bias = Tensor({1, 1, 1, 3});
      call.bias->fill(bias);
      call.bias->set(0, 0, 0, 0, -std::numeric_limits<float>::infinity());
    }
    auto found = attend(call, everything);
    if (!found) return;
    const Results expected = run(call, everything, "reference");
    EXPECT_TRUE(equal(*found->weights, *expected.weights)) << "bias " << bias;
    const Check judged = check(call.inputs(), found->outputs(), call.options());
    EXPECT_EQ(judged.beyond_bound, 0) << judged.first_miss << ", bias " << bias;
  }
}

TEST_P(Extremes, what_alibi_takes_counts_beside_the_lowest_bias) {
  Call call{.q = Tensor({1, 1, 1, 4}), .k = Tensor({1, 1, 3, 4}), .v = Tensor::random({1, 1, 3, 4}, 1)};
  call.alibi = Slopes{.of_heads = {0x1p80f}, .align = Align::starts};
  call.bias = Tensor({1, 1, 1, 1});
  call.bias->fill(std::numeric_limits<float>::lowest());
  const auto found = attend(call, everything);
  if (!found) return;
  for (std::int64_t j = 0; j < 3; ++j)
    EXPECT_EQ(found->weights->at(0, 0, 0, j), j == 0 ? 1 : 0) << "key " << j;
}

TEST_P(Extremes, scores_of_every_stage_are_what_the_reference_says) {
  for_each_extreme([&](const Extreme& extreme) {
    for (const Stage stage : {Stage::raw, Stage::softcapped, Stage::biased}) {
      const Wants wants{.scores = stage};
      const auto found = attend(extreme.call, wants);
      if (!found) return;
      const Results expected = run(extreme.call, wants, "reference");
      for_each(found->scores->shape(), [&](auto b, auto h, auto i, auto j) {
        const float a = found->scores->at(b, h, i, j), z = expected.scores->at(b, h, i, j);
        EXPECT_TRUE(equal(a, z) || std::abs(a - z) <= 8 * 0x1p-24f * std::abs(z))
            << "stage " << static_cast<int>(stage) << ' ' << Place{b, h, i, j} << " is " << a
            << ", the reference says " << z;
      });
    }
  });
}

}  // namespace
}  // namespace heed::cases
