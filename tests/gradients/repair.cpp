// SPDX-License-Identifier: Apache-2.0
// Gradients that are repaired have the bits of the reference (S13, G9): of finite numbers and of any others.
#include <cmath>

#include "call/make_problem.hpp"
#include "cases/backward.hpp"
#include "cases/compare.hpp"
#include "cases/plant.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "cpu/drivers.hpp"
#include "reference/gradient.hpp"

namespace heed::cases {
namespace {

// Every row, key and element that there is a gradient by.
RepairMarks all_marked(const GradientProblem& g) {
  RepairMarks marked;
  std::size_t rows = 0, keys = 0;
  const Problem& p = g.forward;
  for (const Sequence& s : p.sequences) {
    marked.first_row.push_back(static_cast<std::int64_t>(rows));
    marked.first_key.push_back(static_cast<std::int64_t>(keys));
    rows += static_cast<std::size_t>(p.heads * s.queries),
        keys += static_cast<std::size_t>(p.kv_heads * s.keys);
  }
  const auto mark = [](std::vector<unsigned char>& x, std::size_t count) { x.assign(count, 1); };
  if (g.q) mark(marked.q, rows);
  if (g.k) mark(marked.k, keys);
  if (g.v) mark(marked.v, keys);
  if (g.bias) mark(marked.bias, static_cast<std::size_t>(g.given.bias->shape.elements()));
  if (g.sink) mark(marked.sink, static_cast<std::size_t>(g.given.sink->shape.elements()));
  return marked;
}

template <class Compute>
BackwardResults computed(const BackwardCall& call, const std::vector<Of>& wanted, bool accumulate,
                         const Compute& compute) {
  BackwardResults results(call, {}, wanted);
  results.accumulate = accumulate;
  for (const Of of : wanted)
    if (accumulate && results[of]) results[of]->fill(0.75f);
  compute(make_gradient_problem(call.call.inputs(), call.saved(), results.views(call), call.call.options()));
  return results;
}

// What elements came to.
struct Kinds {
  std::int64_t nan = 0, infinite = 0, finite = 0;

  void count(const Tensor& x) {
    for_each(x.shape(), [&](auto... at) {
      const float number = x.at(at...);
      nan += std::isnan(number), infinite += std::isinf(number), finite += std::isfinite(number);
    });
  }
};

TEST(RepairedGradients, have_the_bits_of_the_reference) {
  Kinds kinds;
  for (const std::uint64_t seed : seeds(1, 500)) {
    Call call = random_call(seed, {.dropout = true});
    Dice dice(seed ^ 0x5B011u);
    if (dice.one_in(6)) call = in_f64(call);
    const bool spoils_inputs = dice.one_in(2);
    if (spoils_inputs) plant(call, dice);
    BackwardCall backward(call, seed ^ 0xD0u, dice.one_in(3));
    if (!spoils_inputs)
      plant(*dice.pick<Tensor*>({&backward.out, &backward.out_gradient, &backward.log_sum_exp}), dice);
    std::vector<Of> wanted;
    for (const Of of : every_gradient)
      if (!dice.one_in(4)) wanted.push_back(of);
    const bool accumulate = dice.one_in(4);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const BackwardResults expected =
        computed(backward, wanted, accumulate, [](const GradientProblem& g) { reference::run(g); });
    const BackwardResults got = computed(backward, wanted, accumulate, [](const GradientProblem& g) {
      RepairMarks marks = all_marked(g);
      cpu::repair(g, marks);
    });
    for (const Of of : wanted) {
      if (!expected[of]) continue;
      ASSERT_TRUE(same_numbers(*got[of], *expected[of])) << name_of(of);
      kinds.count(*expected[of]);
    }
  }
  EXPECT_GT(kinds.nan, 1000);
  EXPECT_GT(kinds.infinite, 1000);
  EXPECT_GT(kinds.finite, 1000);
}

// One query, one or two dimensions, numbers of f64.
struct OfNumbers {
  std::vector<double> q, k, v, from_out, out, lse;

  Shape queries() const { return {1, 1, std::ssize(lse), std::ssize(q) / std::ssize(lse)}; }
  Shape keys() const { return {1, 1, std::ssize(v), std::ssize(k) / std::ssize(v)}; }
  Shape rows() const { return {1, 1, std::ssize(lse), 1}; }
  Inputs inputs() const {
    return {{q.data(), queries()}, {k.data(), keys()}, {v.data(), {1, 1, std::ssize(v), 1}}};
  }
  Saved saved() const { return {{out.data(), rows()}, {lse.data(), rows()}}; }
};

// G7: exp(sink - inf) is 0; the gradient by the log-sum-exp reaches the sink of queries that see no key
// alone.
TEST(RepairedGradients, of_f64_give_the_sink_nothing_where_the_log_sum_exp_is_infinite) {
  const OfNumbers one{{1}, {1}, {1}, {1}, {0.5}, {HUGE_VAL}};
  const std::vector<double> from_lse{3}, sink{0};
  std::vector<double> by_sink{7};
  attention_backward(one.inputs(), one.saved(),
                     {.out = {one.from_out.data(), one.rows()},
                      .log_sum_exp = View{from_lse.data(), one.rows()},
                      .sink = MutableView{by_sink.data(), one.rows()}},
                     {.sink = View{sink.data(), one.rows()}});
  EXPECT_EQ(by_sink[0], 0);
}

// G6: a score of -inf, here of numbers whose product f64 cannot hold, hides the key from the row of NaN.
TEST(RepairedGradients, of_f64_see_no_key_whose_score_is_beyond_f64) {
  const OfNumbers two{{1e200, 0, 0, 1}, {-1e200, 0, 1e-200, 0}, {1, 2}, {1, HUGE_VAL}, {1, 1}, {NAN, 0}};
  std::vector<double> by_v(2);
  attention_backward(two.inputs(), two.saved(),
                     {.out = {two.from_out.data(), two.rows()}, .v = MutableView{by_v.data(), {1, 1, 2, 1}}},
                     {.scale = 1.0});
  EXPECT_EQ(by_v[0], HUGE_VAL);
}

}  // namespace
}  // namespace heed::cases
