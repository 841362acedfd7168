// SPDX-License-Identifier: Apache-2.0
// Laws of merge(): disjoint sets of keys, however they are cut, make the whole.
#include <cmath>

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
  part.matrices.clear();
  Shape shape = call.score_shape();
  shape.dim = count;
  BoolTensor seen(shape);
  for_each(shape,
           [&](auto b, auto h, auto i, auto j) { seen.at(b, h, i, j) = call.sees(b, h, i, first + j); });
  part.matrices.push_back({seen, false});
  if (!call.bias) return part;
  part.bias = Tensor(shape, call.bias->dtype());
  for_each(shape, [&](auto b, auto h, auto i, auto j) {
    part.bias->set(b, h, i, j, call.bias_at(b, h, i, first + j));
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
    const Call call = random_call(seed, {.most_queries = 8, .most_keys = 40, .sink = false});
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
    Call call = random_call(seed, {.most_queries = 5, .most_keys = 12, .sink = false});
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
    Call call = random_call(seed, {.most_queries = 8, .most_keys = 40, .sink = false});
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

}  // namespace
}  // namespace heed::cases
