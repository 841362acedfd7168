// SPDX-License-Identifier: Apache-2.0
// Rows that are completed in 64 bits have the bits of the reference (S13): of finite numbers and of any
// others.
#include <cmath>

#include "api/complete_rows.hpp"
#include "api/gathered_cache.hpp"
#include "api/poisoned_values.hpp"
#include "call/make_problem.hpp"
#include "cases/plant.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/cache.hpp"
#include "laws/cached.hpp"

namespace heed::cases {
namespace {

std::vector<reference::UnfinishedRow> all_rows(const Problem& p) {
  std::vector<reference::UnfinishedRow> rows;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.sequences[static_cast<std::size_t>(b)].queries; ++i)
        rows.push_back({b, h, i, false});
  return rows;
}

// Where nothing is written it stays NaN, in both.
template <class Compute>
Results computed(const Call& like, const Wants& wants, const Inputs& inputs, const Options& options,
                 const Compute& compute) {
  Results results(like, wants);
  const Problem problem = make_problem(inputs, results.outputs(), options);
  const api::GatheredCache plain(problem, backend_of("q", Device::cpu));
  if (problem.batch > 0) compute(problem, plain.problem);
  return results;
}

testing::AssertionResult same_numbers(const Results& a, const Results& b) {
  auto result = same_numbers(a.out, b.out);
  if (result && a.weights) result = same_numbers(*a.weights, *b.weights) << " in weights";
  if (result && a.log_sum_exp) result = same_numbers(*a.log_sum_exp, *b.log_sum_exp) << " in log_sum_exp";
  if (result && a.scores) result = same_numbers(*a.scores, *b.scores) << " in scores";
  return result;
}

// What rows came to.
struct Kinds {
  std::int64_t of_nan = 0, partly_nan = 0, infinite = 0, finite = 0;

  void count(const Tensor& out) {
    const Shape& s = out.shape();
    for_each({s.batch, s.heads, s.length, 1}, [&](auto b, auto h, auto i, auto) {
      std::int64_t nans = 0, infinities = 0;
      for (std::int64_t d = 0; d < s.dim; ++d)
        nans += std::isnan(out.at(b, h, i, d)), infinities += std::isinf(out.at(b, h, i, d));
      of_nan += nans == s.dim, partly_nan += nans > 0 && nans < s.dim, infinite += infinities > 0;
      finite += nans + infinities == 0;
    });
  }
};

class Completed : public testing::Test {
 protected:
  testing::AssertionResult agrees(const Call& like, const Wants& wants, const Inputs& inputs,
                                  const Options& options) {
    const Results expected = computed(like, wants, inputs, options,
                                      [](const Problem&, const Problem& plain) { reference::run(plain); });
    const Results got =
        computed(like, wants, inputs, options, [&](const Problem& problem, const Problem& plain) {
          std::vector<reference::UnfinishedRow> rows = all_rows(problem);
          if (like.q.dtype() != DType::f64) api::settle_poisoned(problem, rows);
          settled += std::ssize(all_rows(problem)) - std::ssize(rows);
          api::complete_rows(plain, rows);
        });
    kinds.count(expected.out);
    return same_numbers(got, expected);
  }
  void expect_all_kinds() const {
    const std::int64_t some = small_selection() ? 0 : 100;
    EXPECT_GT(kinds.of_nan, some);
    EXPECT_GT(kinds.partly_nan, some);
    EXPECT_GT(kinds.infinite, some);
    EXPECT_GT(kinds.finite, some);
    EXPECT_GT(settled, some);
    EXPECT_GT(kinds.of_nan, settled + some);
  }

  Kinds kinds;
  std::int64_t settled = 0;  // rows, by a key
};

Wants random_wants(Dice& dice) {
  Wants wants{.weights = dice.one_in(4), .log_sum_exp = dice.one_in(2)};
  if (dice.one_in(4)) wants.scores = dice.pick<Stage>({Stage::raw, Stage::softcapped, Stage::biased});
  return wants;
}

TEST_F(Completed, rows_have_the_bits_of_the_reference) {
  for (const std::uint64_t seed : seeds(1, 700)) {
    Call call = random_call(seed, {.dropout = true, .no_dims = true});
    Dice dice(seed ^ 0x5B011u);
    if (dice.one_in(6)) call = in_f64(call);
    if (!dice.one_in(5)) plant(call, dice);
    const Wants wants = random_wants(dice);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    ASSERT_TRUE(agrees(call, wants, call.inputs(), call.options()));
  }
  expect_all_kinds();
}

// Sequences of their own lengths, of which some are empty, and queries beyond those that count.
TEST_F(Completed, rows_of_packed_and_padded_sequences_have_the_bits_of_the_reference) {
  for (const std::uint64_t seed : seeds(800, 860)) {
    Dice dice(seed);
    Call call = random_call(seed, {.max_batch = 1, .long_keys = false, .masks = false, .bias = false});
    plant(call, dice);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Options options = call.options();
    options.masks.emplace_back(Causal{Align::ends});
    Inputs inputs = call.inputs();
    const std::int64_t queries = dice.between(0, call.queries()), keys = dice.between(0, call.keys());
    const std::vector<std::int64_t> query_starts{0, queries, queries, call.queries()},
        key_starts{0, keys, call.keys(), call.keys()}, counts{queries};
    if (dice.one_in(2))
      inputs.query_starts = query_starts, inputs.key_starts = key_starts;
    else
      inputs.query_counts = counts;
    ASSERT_TRUE(agrees(call, {.log_sum_exp = true}, inputs, options));
  }
}

TEST_F(Completed, rows_over_caches_have_the_bits_of_the_reference) {
  for (const std::uint64_t seed : seeds(900, 980)) {
    Dice dice(seed);
    Call call = random_call(seed, {.max_batch = 1, .long_keys = false, .masks = false, .bias = false});
    if (call.queries() > call.keys() || call.k.shape().dim == 0) continue;
    const bool is_int8 = dice.one_in(4);  // which holds numbers only
    if (is_int8)
      plant(call.q, dice);
    else
      plant(call, dice);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    KvCacheConfig config{.batch = 1,
                         .kv_heads = call.k.shape().heads,
                         .capacity = call.keys(),
                         .dim = call.k.shape().dim,
                         .value_dim = call.v.shape().dim,
                         .type = is_int8 ? CacheType::int8 : cache_type(call.q.dtype())};
    if (dice.one_in(2)) config.page_size = 16, config.pages = call.keys() / 16 + 1;
    KvCache cache(config);
    cache.append(call.k.view(), call.v.view());
    Options options = call.options();
    options.masks.emplace_back(Causal{});
    ASSERT_TRUE(agrees(call, {.log_sum_exp = true}, {.q = call.q.view(), .cache = &cache}, options));
  }
}

}  // namespace
}  // namespace heed::cases
