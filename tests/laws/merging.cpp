// SPDX-License-Identifier: Apache-2.0
// Laws of merge() (S12): disjoint sets of keys, however they are cut, make the whole.
#include <array>
#include <cmath>
#include <limits>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"

namespace heed::cases {
namespace {

class Merging : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, Merging, testing::ValuesIn(plan_and_kernels()), test_name);

constexpr Wants mergeable{.log_sum_exp = true};

// The same problem over keys [first, first + count). Masks come as one Keep matrix: positions would shift
// otherwise.
Call over_keys(const Call& call, std::int64_t first, std::int64_t count) {
  Call part = call;
  part.k = call.k.rows(first, count);
  part.v = call.v.rows(first, count);
  part.causal.reset();
  part.window.reset();
  part.key_lengths.reset();
  part.documents.reset();
  part.matrices.clear();
  Shape shape = call.score_shape();
  shape.dim = count;
  BoolTensor seen(shape);
  for_each(shape,
           [&](auto b, auto h, auto i, auto j) { seen.at(b, h, i, j) = call.sees(b, h, i, first + j); });
  part.matrices.push_back({seen, false});
  part.alibi.reset();
  if (!call.bias && !call.alibi) return part;
  part.bias = Tensor(shape, call.bias && !call.alibi ? call.bias->dtype() : DType::f32);
  for_each(shape, [&](auto b, auto h, auto i, auto j) {
    const float bias = call.bias ? call.bias_at(b, h, i, first + j) : 0;
    part.bias->set(b, h, i, j, bias + call.alibi_at(b, h, i, first + j));
  });
  return part;
}

// Each part errs by P1; their log-sum-exps err by the same and by one rounding, and weigh the parts; the sum
// rounds.
Tally merged_against_oracle(const Call& call, const Results& got) {
  Tally tally;
  for (std::int64_t b = 0; b < call.batch(); ++b)
    for (std::int64_t h = 0; h < call.heads(); ++h)
      for (std::int64_t i = 0; i < call.queries(); ++i) {
        const OracleRow row = oracle_row(call, b, h, i);
        const RowTolerance p1(call, row, f32_roundoff);
        const double lse = std::isfinite(row.log_sum_exp) ? std::abs(row.log_sum_exp) : 0.0;
        const double extra = std::expm1(2 * p1.relative + 16 * f32_roundoff * (lse + p1.largest_score + 1));
        for (std::size_t d = 0; d < row.out.size(); ++d) {
          const auto n = static_cast<std::int64_t>(d);
          // Parts whose scores differ by a lot are rounded before they cancel nothing: 3 roundings to the
          // output's type.
          const double bound = p1.out(row, d, got.out.dtype()) +
                               (extra + 3 * roundoff(got.out.dtype())) * row.out_magnitude[d];
          tally.compare("out", Place{b, h, i, n}, got.out.at(b, h, i, n), row.out[d], bound);
        }
        tally.compare("log_sum_exp", Place{b, h, i, 0}, got.log_sum_exp->at(b, h, i, 0), row.log_sum_exp,
                      2 * p1.log_sum_exp(row));
      }
  return tally;
}

TEST_P(Merging, splitting_keys_anywhere_and_merging_equals_the_whole) {
  for (std::uint64_t seed : seeds(200, 212)) {
    const Call call = random_call(seed, {.max_queries = 8, .max_keys = 40, .sink = false});
    const std::int64_t step = std::max<std::int64_t>(1, call.keys() / 9);
    for (std::int64_t cut = 0; cut <= call.keys(); cut += step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", cut at " + std::to_string(cut) + ": " +
                   describe(call));
      auto left = attend(over_keys(call, 0, cut), mergeable);
      auto right = attend(over_keys(call, cut, call.keys() - cut), mergeable);
      if (!left || !right) continue;
      merge(left->outputs(), right->outputs());
      EXPECT_TRUE(merged_against_oracle(call, *left));
    }
  }
}

TEST_P(Merging, one_key_at_a_time_makes_the_whole) {
  for (std::uint64_t seed : seeds(220, 226)) {
    Call call = random_call(seed, {.max_queries = 5, .max_keys = 12, .sink = false});
    call.out_dtype = DType::f32;  // partial results carry f32, as ranks exchange them
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    auto sum = attend(over_keys(call, 0, 0), mergeable);
    if (!sum) continue;
    for (std::int64_t j = 0; j < call.keys(); ++j) {
      auto one = attend(over_keys(call, j, 1), mergeable);
      ASSERT_TRUE(one);
      merge(sum->outputs(), one->outputs());
    }
    EXPECT_TRUE(merged_against_oracle(call, *sum));
  }
}

TEST_P(Merging, merging_with_no_keys_changes_no_bit_from_either_side) {
  for (std::uint64_t seed : seeds(230, 245)) {
    const Call call = random_call(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto whole = attend(call, mergeable);
    Call nothing = over_keys(call, 0, 0);
    nothing.sink.reset();
    auto empty = attend(nothing, mergeable);
    if (!whole || !empty) continue;
    Results left = *whole, right = *whole, none = *empty;
    merge(left.outputs(), empty->outputs());
    EXPECT_TRUE(same_bits(left, *whole));
    merge(empty->outputs(), right.outputs());
    EXPECT_TRUE(same_bits(*empty, *whole));
    Results again = none;
    merge(again.outputs(), none.outputs());
    EXPECT_TRUE(same_bits(again, none)) << "nothing with nothing is nothing, not NaN";
  }
}

TEST_P(Merging, a_sink_belongs_to_one_part) {
  for (std::uint64_t seed : seeds(250, 260)) {
    Call call = random_call(seed, {.max_queries = 8, .max_keys = 40, .sink = false});
    call.sink = Tensor::random({1, call.heads(), 1, 1}, seed, 4);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const std::int64_t cut = call.keys() / 3;
    Call rest = over_keys(call, cut, call.keys() - cut);
    rest.sink.reset();
    auto left = attend(over_keys(call, 0, cut), mergeable);
    auto right = attend(rest, mergeable);
    if (!left || !right) continue;
    merge(left->outputs(), right->outputs());
    EXPECT_TRUE(merged_against_oracle(call, *left));
  }
}

// log(exp(a) + exp(b)) overflows here; the two parts are 1e4 apart and far from zero.
TEST_P(Merging, parts_with_huge_log_sum_exps_merge_without_overflow) {
  for (float level : {-3e4f, 3e4f}) {
    Call call{.q = Tensor({1, 1, 1, 1}), .k = Tensor({1, 1, 2, 1}), .v = Tensor({1, 1, 2, 1}), .scale = 1.0f};
    call.q.fill(1);
    for (float apart : {0.0f, 1.0f, 1e4f}) {
      call.k.set(0, 0, 0, 0, level);
      call.k.set(0, 0, 1, 0, level + apart);
      call.v.set(0, 0, 0, 0, 1);
      call.v.set(0, 0, 1, 0, 3);
      auto left = attend(over_keys(call, 0, 1), mergeable), right = attend(over_keys(call, 1, 1), mergeable);
      if (!left || !right) continue;
      merge(left->outputs(), right->outputs());
      EXPECT_TRUE(merged_against_oracle(call, *left)) << "level " << level << ", apart " << apart;
    }
  }
}

// One row of two values, as some call left it.
struct Side {
  float log_sum_exp;
  std::array<float, 2> out;

  Results results() const {
    Results made({.q = Tensor({1, 1, 1, 1}), .k = Tensor({1, 1, 1, 1}), .v = Tensor({1, 1, 1, 2})},
                 mergeable);
    made.log_sum_exp->set(0, 0, 0, 0, log_sum_exp);
    for (std::int64_t d : {0, 1}) made.out.set(0, 0, 0, d, out[static_cast<std::size_t>(d)]);
    return made;
  }
};

// The same number, zeros by their sign; NaN is NaN.
testing::AssertionResult is(float found, float expected) {
  if (std::isnan(found) && std::isnan(expected)) return testing::AssertionSuccess();
  if (found == expected && std::signbit(found) == std::signbit(expected)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "is " << found << ", expected " << expected;
}

testing::AssertionResult is(const Results& found, const Side& expected) {
  auto result = is(found.log_sum_exp->at(0, 0, 0, 0), expected.log_sum_exp);
  if (!result) return result << " in log_sum_exp";
  for (std::int64_t d : {0, 1}) {
    result = is(found.out.at(0, 0, 0, d), expected.out[static_cast<std::size_t>(d)]);
    if (!result) return result << " in out(" << d << ')';
  }
  return result;
}

// What one call over the keys of both sides says, worked out by hand (S12, S13).
TEST(Merge, gives_one_answer_in_either_order_also_to_what_is_no_number) {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  struct Pair {
    const char* claim;
    Side a, b, both;
  };
  const Pair pairs[] = {
      {"equal sides", {0, {1, 2}}, {0, {3, 6}}, {std::log(2.0f), {2, 4}}},
      {"a NaN value, far outweighed, is seen", {0, {nan, 2}}, {1e4f, {3, 6}}, {1e4f, {nan, 6}}},
      {"an infinite value, far outweighed, is seen", {0, {1, inf}}, {1e4f, {3, 6}}, {1e4f, {3, nan}}},
      {"an infinite value beside a number", {0, {1, inf}}, {0, {3, 6}}, {std::log(2.0f), {2, inf}}},
      {"infinite values of two signs", {0, {inf, 2}}, {0, {-inf, 6}}, {std::log(2.0f), {nan, 4}}},
      {"a NaN score is every column's", {nan, {nan, nan}}, {0, {3, 6}}, {nan, {nan, nan}}},
      {"a NaN log-sum-exp beside any output", {nan, {1, 2}}, {0, {3, 6}}, {nan, {nan, nan}}},
      {"no key, whose output is not read", {-inf, {nan, inf}}, {0, {-0.0f, 6}}, {0, {-0.0f, 6}}},
      {"no key beside NaN", {-inf, {1, 2}}, {nan, {3, nan}}, {nan, {3, nan}}},
      {"no key beside what is beyond f32", {-inf, {nan, nan}}, {inf, {3, 6}}, {inf, {3, 6}}},
      {"no key on either side", {-inf, {0, 0}}, {-inf, {0, 0}}, {-inf, {0, 0}}},
      {"what is beyond f32 outweighs a number", {inf, {1, 2}}, {3e38f, {3, 6}}, {inf, {1, 2}}},
      {"a NaN value beside what is beyond f32", {inf, {1, 2}}, {0, {3, nan}}, {inf, {1, nan}}},
      {"two beyond f32 cannot be weighed", {inf, {1, 2}}, {inf, {1, 6}}, {inf, {nan, nan}}},
      {"NaN beside what is beyond f32", {nan, {1, 2}}, {inf, {3, 6}}, {nan, {nan, nan}}},
      {"the largest log-sum-exps", {3e38f, {1, 2}}, {3e38f, {3, 6}}, {3e38f, {2, 4}}},
      {"the largest values", {0, {3e38f, 2}}, {0, {3e38f, 6}}, {std::log(2.0f), {3e38f, 4}}},
  };
  for (const Pair& pair : pairs) {
    Results ab = pair.a.results(), ba = pair.b.results();
    merge(ab.outputs(), pair.b.results().outputs());
    merge(ba.outputs(), pair.a.results().outputs());
    EXPECT_TRUE(is(ab, pair.both)) << pair.claim;
    EXPECT_TRUE(is(ba, pair.both)) << pair.claim << ", the other way round";
  }
}

TEST(Merge, gives_the_same_bits_in_either_order) {
  for (std::uint64_t seed : seeds(270, 290)) {
    const Call call = random_call(seed, {.max_queries = 8, .max_keys = 40, .sink = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const std::int64_t cut = call.keys() / 3;
    Results left = run(over_keys(call, 0, cut), mergeable),
            right = run(over_keys(call, cut, call.keys() - cut), mergeable), other = left;
    merge(left.outputs(), right.outputs());
    merge(right.outputs(), other.outputs());
    EXPECT_TRUE(same_bits(left, right));
  }
}

// Where a query, a key or a value is NaN, every way to cut the keys says so as one call does.
TEST_P(Merging, what_is_nan_in_one_call_is_nan_in_merged_parts) {
  for (std::uint64_t seed : seeds(300, 310)) {
    Call call = random_call(seed, {.max_queries = 6, .max_keys = 20, .sink = false});
    call.out_dtype = DType::f32;
    if (call.keys() < 2 || call.queries() == 0) continue;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    call.k.set(0, 0, 0, 0, nan);
    call.v.set(0, 0, call.keys() - 1, 0, nan);
    const auto whole = attend(call, mergeable);
    for (std::int64_t cut = 1; cut < call.keys(); cut += 3) {
      auto left = attend(over_keys(call, 0, cut), mergeable);
      auto right = attend(over_keys(call, cut, call.keys() - cut), mergeable);
      if (!whole || !left || !right) continue;
      merge(left->outputs(), right->outputs());
      for_each(whole->out.shape(), [&](auto b, auto h, auto i, auto d) {
        EXPECT_EQ(std::isnan(left->out.at(b, h, i, d)), std::isnan(whole->out.at(b, h, i, d)))
            << "cut at " << cut << ", out" << Place{b, h, i, d};
      });
      for_each(whole->log_sum_exp->shape(), [&](auto b, auto h, auto i, auto d) {
        EXPECT_EQ(std::isnan(left->log_sum_exp->at(b, h, i, d)),
                  std::isnan(whole->log_sum_exp->at(b, h, i, d)))
            << "cut at " << cut << ", log_sum_exp" << Place{b, h, i, d};
      });
    }
  }
}

}  // namespace
}  // namespace heed::cases
