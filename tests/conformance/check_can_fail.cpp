// SPDX-License-Identifier: Apache-2.0
// check() is the judge of every kernel, so it is judged here: it counts what is wrong, and its bound is tight
// enough.
#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/cache.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

constexpr Wants everything{.weights = true, .log_sum_exp = true};

Check judge(const Call& call, Results& results) {
  return check(call.inputs(), results.outputs(), call.options());
}

TEST(Check, counts_every_element_and_finds_nothing_wrong_with_the_reference) {
  const Call call = random_call(3, {.max_queries = 9});
  Results results = run(call, everything, "reference");
  const Check result = judge(call, results);
  EXPECT_EQ(result.compared, results.out.shape().elements() + results.weights->shape().elements() +
                                 results.log_sum_exp->shape().elements());
  EXPECT_EQ(result.beyond_bound, 0);
  EXPECT_LE(result.worst_error_in_bounds, 1.0);
  EXPECT_EQ(result.first_miss, "");
}

// The bound of P1 as these tests compute it, applied to one element at a time.
TEST(Check, counts_an_error_of_a_few_bounds_wherever_it_is) {
  for (std::uint64_t seed : seeds(10, 30)) {
    Call call = random_call(seed, {.max_queries = 6, .max_keys = 60, .halves = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const Results right = run(call, everything, "reference");
    for (std::int64_t i = 0; i < call.queries(); ++i) {
      const OracleRow row = oracle_row(call, 0, 0, i);
      if (row.visible == 0) continue;
      const RowTolerance p1(call, row, f32_roundoff);
      Results wrong = right;
      wrong.out.set(0, 0, i, 0, static_cast<float>(row.out[0] + 8 * p1.out(row, 0, DType::f32)));
      Check result = judge(call, wrong);
      EXPECT_EQ(result.beyond_bound, 1) << "out, row " << i;
      EXPECT_GT(result.worst_error_in_bounds, 1.0);
      EXPECT_EQ(result.first_miss.rfind("out(0, 0, " + std::to_string(i) + ", 0) is ", 0), 0u)
          << result.first_miss;
      wrong = right;
      const std::size_t j = row.weight.size() - 1;
      wrong.weights->set(0, 0, i, static_cast<std::int64_t>(j),
                         static_cast<float>(row.weight[j] + 8 * p1.weight(row, j)));
      EXPECT_EQ(judge(call, wrong).beyond_bound, 1) << "weights, row " << i;
      wrong = right;
      wrong.log_sum_exp->set(0, 0, i, 0, static_cast<float>(row.log_sum_exp + 8 * p1.log_sum_exp(row)));
      EXPECT_EQ(judge(call, wrong).beyond_bound, 1) << "log_sum_exp, row " << i;
    }
  }
}

TEST(Check, counts_nan_infinity_and_a_nonzero_where_no_key_is_seen) {
  Call call{.q = Tensor::random({1, 1, 4, 8}, 1),
            .k = Tensor::random({1, 1, 9, 8}, 2),
            .v = Tensor::random({1, 1, 9, 8}, 3)};
  call.causal = Causal{Align::starts};
  call.matrices.push_back({BoolTensor({1, 1, 4, 1}), false});
  for (std::int64_t i : {0, 1, 2}) call.matrices[0].where.at(0, 0, i, 0) = true;  // query 3 sees nothing
  Results results = run(call, everything, "reference");
  EXPECT_EQ(judge(call, results).beyond_bound, 0);
  results.out.set(0, 0, 0, 0, std::numeric_limits<float>::quiet_NaN());
  results.out.set(0, 0, 1, 0, std::numeric_limits<float>::infinity());
  results.out.set(0, 0, 3, 0, 1e-6f);
  results.weights->set(0, 0, 1, 5, 1e-6f);  // a key that is masked
  results.log_sum_exp->set(0, 0, 3, 0, -49993.0f);
  EXPECT_EQ(judge(call, results).beyond_bound, 5);
}

TEST(Check, calls_nan_for_nan_a_hit_and_a_number_for_nan_a_miss) {
  Call call{.q = Tensor::random({1, 1, 3, 8}, 1),
            .k = Tensor::random({1, 1, 9, 8}, 2),
            .v = Tensor::random({1, 1, 9, 8}, 3)};
  call.v.set(0, 0, 4, 2, std::numeric_limits<float>::quiet_NaN());
  Results results = run(call, everything, "reference");
  EXPECT_EQ(judge(call, results).beyond_bound, 0);
  results.out.set(0, 0, 1, 2, 0.0f);
  EXPECT_EQ(judge(call, results).beyond_bound, 1);
}

// Nothing is written there (S19), so what lies there is neither right nor wrong.
TEST(Check, passes_over_the_rows_that_pad_queries) {
  const Call call{.q = Tensor::random({2, 3, 5, 8}, 1),
                  .k = Tensor::random({2, 3, 9, 8}, 2),
                  .v = Tensor::random({2, 3, 9, 4}, 3)};
  const std::vector<std::int64_t> counts{2, 5};
  Inputs inputs = call.inputs();
  inputs.query_counts = counts;
  Results results(call, everything);
  attention(inputs, results.outputs());
  const Check right = check(inputs, results.outputs());
  EXPECT_EQ(right.beyond_bound, 0) << right.first_miss;
  EXPECT_EQ(right.compared, (2 + 5) * 3 * (4 + 9 + 1));
  results.out.set(1, 2, 4, 3, 100);  // the last row of all, which is a query's
  EXPECT_EQ(check(inputs, results.outputs()).beyond_bound, 1);
}

// The bound of one element, found by an error in it that is far larger.
double bound_of(const Inputs& inputs, Tensor& element, const Outputs& outputs) {
  element.set(0, 0, 0, 0, element.at(0, 0, 0, 0) + 1);
  const Check found = check(inputs, outputs);
  element.set(0, 0, 0, 0, element.at(0, 0, 0, 0) - 1);
  EXPECT_EQ(found.beyond_bound, 1);
  return found.worst_error / found.worst_error_in_bounds;
}

// Against plain keys and values with the same numbers: a product with the scale, and the rounding of what the
// reference reads, for the score and for the output.
TEST(Check, counts_the_two_roundings_of_an_int8_cache) {
  constexpr std::int64_t keys = 5, dim = 8;
  Tensor k = Tensor::random({1, 1, keys, dim}, 2, 4), v = Tensor::random({1, 1, keys, 1}, 3);
  KvCache cache({.kv_heads = 1, .capacity = keys, .dim = dim, .value_dim = 1, .type = CacheType::int8});
  cache.append(k.view(), v.view());
  cache.read(0, k.mutable_view(), v.mutable_view());
  for (const float size : {0.0f, 2.0f}) {
    const Tensor q = Tensor::random({1, 1, 1, dim}, 1, size);
    Tensor out({1, 1, 1, 1}), log_sum_exp({1, 1, 1, 1});
    const Outputs outputs{.out = out.mutable_view(), .log_sum_exp = log_sum_exp.mutable_view()};
    const Inputs plain{.q = q.view(), .k = k.view(), .v = v.view()}, cached{.q = q.view(), .cache = &cache};
    attention(plain, outputs, {.kernel = "reference"});
    double dot = 0, mean = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      double here = 0;
      for (std::int64_t d = 0; d < dim; ++d) here += std::abs(q.at(0, 0, 0, d) * k.at(0, 0, j, d));
      dot = std::max(dot, here / std::sqrt(dim));
      mean += std::abs(v.at(0, 0, j, 0)) / keys;
    }
    const double least = 2 * f32_roundoff * (1 - 1e-6);  // dot and mean are sums of floats
    const double more_of_lse = bound_of(cached, log_sum_exp, outputs) - bound_of(plain, log_sum_exp, outputs);
    EXPECT_GE(more_of_lse, least * 3 * dot);  // in the score, and twice in the sum of the weights
    const double more_of_out = bound_of(cached, out, outputs) - bound_of(plain, out, outputs);
    EXPECT_GE(more_of_out, size == 0 ? least * mean : least * 2 * dot * std::abs(out.at(0, 0, 0, 0)));
  }
}

// Subnormal numbers are numbers (S13), of few bits: what is lost of them is in the bound.
TEST(Check, knows_what_is_lost_of_subnormal_queries_and_scales) {
  constexpr std::int64_t dim = 512;
  const Tensor v = Tensor::random({1, 1, 2, 1}, 1);
  Tensor q({1, 1, 1, dim}), k({1, 1, 2, dim}), out({1, 1, 1, 1}), log_sum_exp({1, 1, 1, 1});
  const Inputs inputs{.q = q.view(), .k = k.view(), .v = v.view()};
  const Outputs outputs{.out = out.mutable_view(), .log_sum_exp = log_sum_exp.mutable_view()};
  struct Extremes {
    float query, key, scale;
  };
  // With log2(e) the first's queries, and the second's scale, lie between two subnormals.
  for (const Extremes x : {Extremes{0x1p-146f, 0x1p127f, 0.736f}, Extremes{0x1p70f, 0x1p70f, 0x1p-147f}}) {
    q.fill(x.query);
    for (std::int64_t d = 0; d < dim; ++d) k.set(0, 0, 1, d, x.key);
    for (const std::string& kernel : kernel_names()) {
      if (!attend_if_accepted(inputs, outputs, {.scale = x.scale, .kernel = kernel})) continue;
      const Check found = check(inputs, outputs, {.scale = x.scale});
      EXPECT_EQ(found.beyond_bound, 0) << kernel << ", scale " << x.scale << ": " << found.first_miss;
    }
  }
}

TEST(Check, sees_through_a_wrong_problem) {
  const Call right{.q = Tensor::random({1, 4, 7, 8}, 1, 4),
                   .k = Tensor::random({1, 2, 20, 8}, 2, 4),
                   .v = Tensor::random({1, 2, 20, 8}, 3)};
  std::vector<std::pair<std::string, Call>> wrong(7, {"", right});
  wrong[0].first = "the other head map", wrong[0].second.head_map = HeadMap::tiled;
  wrong[1].first = "a softcap", wrong[1].second.softcap = 5.0f;
  wrong[2].first = "another scale", wrong[2].second.scale = 0.36f;
  wrong[3].first = "one key fewer", wrong[3].second.key_lengths = {{19}};
  wrong[4].first = "a causal mask aligned at the ends", wrong[4].second.causal = Causal{Align::ends};
  wrong[5].first = "dropout", wrong[5].second.dropout = Dropout{0.1f, 1};
  wrong[6].first = "a sink", wrong[6].second.sink = Tensor({1, 1, 1, 1});
  for (const auto& [name, call] : wrong) {
    Results results = run(call, everything);
    EXPECT_GT(judge(right, results).beyond_bound, 0) << name;
  }
}

}  // namespace
}  // namespace heed::cases
