// SPDX-License-Identifier: Apache-2.0
// Laws of poison (S4, S13): NaN and Inf where a query does not look change nothing; where it looks, NaN shows
// exactly there.
#include <cmath>
#include <limits>
#include <vector>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"

namespace heed::cases {
namespace {

class Poison : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, Poison, testing::ValuesIn(plan_and_kernels()), test_name);

// Without the weights, which decode kernels refuse to return: these claims must reach them too.
constexpr Wants rows{.log_sum_exp = true};
constexpr float infinity = std::numeric_limits<float>::infinity(),
                nan = std::numeric_limits<float>::quiet_NaN();

void poison_key(Call& call, std::int64_t b, std::int64_t kv_head, std::int64_t j, float with) {
  for (std::int64_t d = 0; d < call.k.shape().dim; ++d) call.k.set(b, kv_head, j, d, with);
  for (std::int64_t d = 0; d < call.v.shape().dim; ++d) call.v.set(b, kv_head, j, d, with);
}

// Key j of a KV head, seen by any query of any head that reads it.
bool seen_by_any(const Call& call, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  for (std::int64_t h = 0; h < call.heads(); ++h)
    for (std::int64_t i = 0; i < call.queries(); ++i)
      if (call.kv_head(h) == kv_head && call.sees(b, h, i, j)) return true;
  return false;
}

std::int64_t poison_unseen(Call& call, float with) {
  std::int64_t poisoned = 0;
  for (std::int64_t b = 0; b < call.batch(); ++b)
    for (std::int64_t h = 0; h < call.k.shape().heads; ++h)
      for (std::int64_t j = 0; j < call.keys(); ++j)
        if (!seen_by_any(call, b, h, j)) poison_key(call, b, h, j, with), ++poisoned;
  return poisoned;
}

// One problem per kind of mask, each with keys that no query sees. Two heads have few rows for each KV head
// over keys that are whole tiles; four have more rows than matrix instructions take at once, and a tile is
// short.
std::vector<Call> one_of_each_mask(DType dtype, std::int64_t heads) {
  const std::int64_t keys = heads == 2 ? 160 : 150;
  const Call plain{.q = Tensor::random({2, heads, 9, 16}, 1, 4, dtype),
                   .k = Tensor::random({2, 2, keys, 16}, 2, 2, dtype),
                   .v = Tensor::random({2, 2, keys, 12}, 3, 2, dtype)};
  std::vector<Call> calls(8, plain);
  calls[0].causal = Causal{Align::starts};
  calls[1].window = Window{3, 2, Align::ends};
  calls[2].key_lengths = {{70, 0}};
  calls[3].matrices = {{BoolTensor({1, 1, 1, keys}), false}};
  calls[4].matrices = {{BoolTensor({2, 1, 9, keys}), true}};
  calls[5].bias = Tensor({1, heads, 9, keys});
  for_each({1, heads, 9, keys}, [&](auto b, auto h, auto i, auto j) {
    calls[3].matrices[0].where.at(0, 0, 0, j) = j % 3 == 1;
    for (std::int64_t n : {0, 1}) calls[4].matrices[0].where.at(n, 0, i, j) = j % 5 != 2 && j != i;
    calls[5].bias->set(b, h, i, j, j % 4 == 1 && j < 100 ? 0.5f : -infinity);
  });
  calls[6].causal = Causal{Align::starts};
  calls[6].key_lengths = {{5, static_cast<std::int32_t>(keys)}};
  calls[7].documents =
      Documents{.ids = std::vector<std::int32_t>(static_cast<std::size_t>(keys), 7), .align = Align::starts};
  for (std::size_t j = 0; j < calls[7].documents->ids.size(); ++j)
    calls[7].documents->ids[j] = j < 5 || j > 120 ? 3 : j < 60 ? 9 : 5;
  return calls;
}

TEST_P(Poison, nothing_planted_in_unseen_keys_and_values_changes_a_bit_whatever_the_mask) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t heads : {2, 4})
      for (const Call& clean : one_of_each_mask(dtype, heads)) {
        SCOPED_TRACE(describe(clean));
        const auto expected = attend(clean, everything), expected_rows = attend(clean, rows);
        for (float with : {nan, infinity, -infinity}) {
          Call call = clean;
          EXPECT_GT(poison_unseen(call, with), 0);
          EXPECT_TRUE(same_bits(attend(call, everything), expected)) << "planted " << with;
          EXPECT_TRUE(same_bits(attend(call), expected_rows)) << "planted " << with;
          EXPECT_TRUE(same_bits(attend(call, rows), expected_rows)) << "planted " << with;
        }
      }
}

TEST_P(Poison, nothing_planted_in_unseen_keys_and_values_changes_a_bit_in_random_problems) {
  for (std::uint64_t seed : seeds(500, 540)) {
    const Call clean = random_call(seed, {.dropout = true});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(clean));
    Call call = clean;
    poison_unseen(call, seed % 2 == 0 ? nan : infinity);
    const auto expected = attend(clean, everything), got = attend(call, everything);
    EXPECT_TRUE(same_bits(got, expected));
    EXPECT_TRUE(same_bits(attend(call, rows), attend(clean, rows)));
  }
}

TEST_P(Poison, a_nan_key_reaches_exactly_the_rows_that_see_it) {
  for (std::uint64_t seed : seeds(550, 590)) {
    const Call clean = random_call(seed);
    if (clean.keys() == 0) continue;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(clean));
    Dice dice(seed);
    const std::int64_t b = dice.between(0, clean.batch() - 1),
                       kv = dice.between(0, clean.k.shape().heads - 1), j = dice.between(0, clean.keys() - 1);
    Call call = clean;
    for (std::int64_t d = 0; d < call.k.shape().dim; ++d) call.k.set(b, kv, j, d, nan);
    const auto expected = attend(clean, everything), got = attend(call, everything);
    if (!expected || !got) continue;
    auto sees_it = [&](auto n, auto h, auto i) {
      return n == b && clean.kv_head(h) == kv && clean.sees(n, h, i, j);
    };
    auto apart = [&](auto n, auto h, auto i, auto) { return !sees_it(n, h, i); };
    EXPECT_TRUE(same_bits_where(got->out, expected->out, apart));
    EXPECT_TRUE(same_bits_where(*got->weights, *expected->weights, apart));
    EXPECT_TRUE(same_bits_where(*got->log_sum_exp, *expected->log_sum_exp, apart));
    std::int64_t missing = 0;
    for_each(got->out.shape(), [&](auto n, auto h, auto i, auto d) {
      if (sees_it(n, h, i) && !std::isnan(got->out.at(n, h, i, d))) ++missing;
    });
    for_each(got->log_sum_exp->shape(), [&](auto n, auto h, auto i, auto d) {
      if (sees_it(n, h, i) && !std::isnan(got->log_sum_exp->at(n, h, i, d))) ++missing;
    });
    EXPECT_EQ(missing, 0) << "elements that should be NaN";
  }
}

TEST_P(Poison, a_nan_in_one_value_column_reaches_exactly_that_column_of_the_rows_that_see_it) {
  for (std::uint64_t seed : seeds(600, 640)) {
    const Call clean = random_call(seed);
    if (clean.keys() == 0) continue;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(clean));
    Dice dice(seed);
    const std::int64_t b = dice.between(0, clean.batch() - 1),
                       kv = dice.between(0, clean.k.shape().heads - 1), j = dice.between(0, clean.keys() - 1),
                       column = dice.between(0, clean.v.shape().dim - 1);
    Call call = clean;
    call.v.set(b, kv, j, column, nan);
    const auto expected = attend(clean, everything), got = attend(call, everything);
    if (!expected || !got) continue;
    auto reached = [&](auto n, auto h, auto i, auto d) {
      return n == b && d == column && clean.kv_head(h) == kv && clean.sees(n, h, i, j);
    };
    EXPECT_TRUE(same_bits_where(got->out, expected->out, [&](auto... at) { return !reached(at...); }));
    EXPECT_TRUE(same_bits(*got->weights, *expected->weights));
    EXPECT_TRUE(same_bits(*got->log_sum_exp, *expected->log_sum_exp));
    std::int64_t missing = 0;
    for_each(got->out.shape(), [&](auto n, auto h, auto i, auto d) {
      if (reached(n, h, i, d) && !std::isnan(got->out.at(n, h, i, d))) ++missing;
    });
    EXPECT_EQ(missing, 0) << "elements that should be NaN";
  }
}

// Weights of scores so far apart are 0 in f32, and some of them in 64 bits as well, which times an infinity
// is NaN.
TEST_P(Poison, values_without_numbers_make_of_a_row_what_the_reference_says) {
  for (std::uint64_t seed : seeds(710, 790)) {
    Call call = random_call(seed, {.dropout = seed % 3 == 0});
    if (call.keys() == 0) continue;
    Dice dice(seed);
    const float widened[] = {1, 40, 400, 1e20f};
    const float by = call.q.dtype() == DType::f16 ? 40 : widened[dice.between(0, 3)];
    if (by != 1) for_each(call.q.shape(), [&](auto... at) { call.q.set(at..., call.q.at(at...) * by); });
    const float planted[] = {nan, infinity, -infinity};
    for (std::int64_t n = dice.between(1, 3); n > 0; --n)
      call.v.set(dice.between(0, call.v.shape().batch - 1), dice.between(0, call.v.shape().heads - 1),
                 dice.between(0, call.v.shape().length - 1), dice.between(0, call.v.shape().dim - 1),
                 planted[dice.between(0, 2)]);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", queries times " + std::to_string(by) + ": " +
                 describe(call));
    const Results expected = run(call, rows, "reference");
    for (const Wants& wants : {Wants{}, rows}) {
      const auto got = attend(call, wants);
      if (!got) continue;
      std::int64_t other = 0;
      for_each(got->out.shape(), [&](auto... at) {
        const float x = got->out.at(at...), y = expected.out.at(at...);
        if (std::isfinite(x) != std::isfinite(y) || std::isnan(x) != std::isnan(y)) ++other;
        if (std::isinf(x) && x != y) ++other;
      });
      EXPECT_EQ(other, 0) << "elements are another NaN, infinity or number";
    }
  }
}

TEST_P(Poison, a_nan_query_reaches_only_its_own_row_and_not_even_that_without_a_key) {
  for (std::uint64_t seed : seeds(650, 680)) {
    const Call clean = random_call(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(clean));
    Dice dice(seed);
    const std::int64_t b = dice.between(0, clean.batch() - 1), h = dice.between(0, clean.heads() - 1),
                       i = dice.between(0, clean.queries() - 1);
    Call call = clean;
    call.q.set(b, h, i, call.q.shape().dim - 1, nan);
    const auto expected = attend(clean, everything), got = attend(call, everything);
    if (!expected || !got) continue;
    const bool reached = clean.sees_any(b, h, i);
    auto apart = [&](auto n, auto m, auto r, auto) { return !reached || n != b || m != h || r != i; };
    EXPECT_TRUE(same_bits_where(got->out, expected->out, apart));
    EXPECT_TRUE(same_bits_where(*got->weights, *expected->weights, apart));
    EXPECT_EQ(std::isnan(got->out.at(b, h, i, 0)), reached);
  }
}

TEST_P(Poison, a_nan_bias_on_a_masked_key_changes_nothing) {
  for (std::uint64_t seed : seeds(690, 710)) {
    Call clean = random_call(seed, {.bias = false});
    clean.bias = Tensor::random(clean.score_shape(), seed, 1);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(clean));
    Call call = clean;
    for_each(call.score_shape(), [&](auto b, auto h, auto i, auto j) {
      if (!clean.sees(b, h, i, j)) call.bias->set(b, h, i, j, nan);
    });
    const auto expected = attend(clean, everything), got = attend(call, everything);
    EXPECT_TRUE(same_bits(got, expected));
  }
}

}  // namespace
}  // namespace heed::cases
