// SPDX-License-Identifier: Apache-2.0
// Rows that are repaired have the bits of the reference (S13): of finite numbers and of any others.
#include <cmath>

#include "api/gathered_cache.hpp"
#include "call/make_problem.hpp"
#include "cases/plant.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "cpu/drivers.hpp"
#include "heed/cache.hpp"
#include "laws/cached.hpp"
#include "reference/row.hpp"

namespace heed::cases {
namespace {

// What a kernel leaves of results where it could finish nothing: NaN but for what is 0 or hidden.
void leave_nothing(Tensor& x) {
  for_each(x.shape(), [&](auto... at) {
    if (x.at(at...) != 0 && x.at(at...) != -INFINITY) x.set(at..., NAN);
  });
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

class Repaired : public testing::Test {
 protected:
  testing::AssertionResult agrees(const Call& like, const Wants& wants, const Inputs& inputs,
                                  const Options& options) {
    Results expected(like, wants);
    const Problem problem = make_problem(inputs, expected.outputs(), options);
    const api::GatheredCache plain(problem, backend_of("q", Device::cpu));
    if (problem.batch > 0) reference::run(plain.problem);
    kinds.count(expected.out);
    Results got = expected;
    for (Tensor* const x :
         {&got.out, got.weights ? &*got.weights : nullptr, got.log_sum_exp ? &*got.log_sum_exp : nullptr,
          got.scores ? &*got.scores : nullptr})
      if (x) leave_nothing(*x);
    const Problem left = make_problem(inputs, got.outputs(), options);
    if (left.batch > 0) cpu::repair(left);
    return same_numbers(got, expected);
  }
  void expect_all_kinds() const {
    const std::int64_t some = small_selection() ? 0 : 100;
    EXPECT_GT(kinds.of_nan, some);
    EXPECT_GT(kinds.partly_nan, some);
    EXPECT_GT(kinds.infinite, some);
    EXPECT_GT(kinds.finite, some);
  }

  Kinds kinds;
};

Wants random_wants(Dice& dice) {
  Wants wants{.weights = dice.one_in(4), .log_sum_exp = dice.one_in(2)};
  if (dice.one_in(4)) wants.scores = dice.pick<Stage>({Stage::raw, Stage::softcapped, Stage::biased});
  return wants;
}

TEST_F(Repaired, rows_have_the_bits_of_the_reference) {
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
TEST_F(Repaired, rows_of_packed_and_padded_sequences_have_the_bits_of_the_reference) {
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

TEST_F(Repaired, rows_over_caches_have_the_bits_of_the_reference) {
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

// In f64 the first sum that is fused is infinite, the rounded one NaN: neither a softcap nor a mask of -inf
// may hide that.
TEST_F(Repaired, products_of_f64_that_overflow_in_opposite_directions_are_nan) {
  const std::vector<double> q{1e200, 1e200}, k{1e200, -1e200, 0, 0}, down{-1e200, 1e200, 0, 0}, v{1, 2};
  for (const std::vector<double>& keys : {k, down})
    for (const std::optional<double> softcap : {std::optional<double>{}, std::optional<double>{2}}) {
      std::vector<double> out(1);
      attention({{q.data(), {1, 1, 1, 2}}, {keys.data(), {1, 1, 2, 2}}, {v.data(), {1, 1, 2, 1}}},
                {.out = {out.data(), {1, 1, 1, 1}}}, {.softcap = softcap});
      EXPECT_TRUE(std::isnan(out[0])) << out[0] << (softcap ? ", softcap" : "");
    }
}

}  // namespace
}  // namespace heed::cases
