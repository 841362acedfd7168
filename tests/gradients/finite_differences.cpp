// SPDX-License-Identifier: Apache-2.0
// The reference gradient is the derivative of the reference (G1, G2, G3, G4, G5, G7): central differences of
// a loss in double precision, over small problems with every option. The loss is written anew here, from the
// rules.
#include <cmath>
#include <functional>

#include "call/make_problem.hpp"
#include "cases/backward.hpp"
#include "cases/compare.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "reference/gradient.hpp"
#include "reference/row.hpp"

namespace heed::cases {
namespace {

// The numbers of one argument in double precision, so that a small step is not lost to rounding.
struct Numbers {
  Shape shape{};
  std::vector<double> x{};

  Numbers() = default;
  explicit Numbers(const Tensor& t) : shape(t.shape()) {
    for_each(shape, [&](auto b, auto h, auto i, auto d) { x.push_back(t.at(b, h, i, d)); });
  }
  std::size_t index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    const auto at = [](std::int64_t n, std::int64_t extent) { return extent == 1 ? 0 : n; };
    return static_cast<std::size_t>(
        ((at(b, shape.batch) * shape.heads + at(h, shape.heads)) * shape.length + at(i, shape.length)) *
            shape.dim +
        at(d, shape.dim));
  }
  double operator()(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    return x[index(b, h, i, d)];
  }
};

struct Arguments {
  std::array<Numbers, 5> of{};
  Numbers& operator[](Of which) { return of[static_cast<std::size_t>(which)]; }
  const Numbers& operator[](Of which) const { return of[static_cast<std::size_t>(which)]; }
};

double score(const Call& c, const Arguments& x, const Place& at, double scale) {
  double dot = 0;
  for (std::int64_t d = 0; d < c.q.shape().dim; ++d)
    dot += x[Of::q](at.b, at.h, at.i, d) * x[Of::k](at.b, c.kv_head(at.h), at.d, d);
  double s = dot * scale;
  if (c.softcap) s = *c.softcap * std::tanh(s / *c.softcap);
  s += static_cast<double>(c.alibi_at(at.b, at.h, at.i, at.d));
  return c.bias ? s + x[Of::bias](at.b, at.h, at.i, at.d) : s;
}

// What one query adds to the loss: its out and its log-sum-exp, each times its gradient.
double loss_of(const BackwardCall& backward, const Arguments& x, std::int64_t b, std::int64_t h,
               std::int64_t i, const reference::Row& pattern) {
  const Call& c = backward.call;
  const double scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(c.q.shape().dim)));
  std::vector<double> s;
  double max = c.sink ? x[Of::sink](b, h, 0, 0) : -INFINITY;
  for (std::int64_t j = 0; j < c.keys(); ++j) {
    s.push_back(c.sees(b, h, i, j) ? score(c, x, {b, h, i, j}, scale) : -INFINITY);
    max = std::max(max, s.back());
  }
  if (max == -INFINITY) return 0;
  double sum = c.sink ? std::exp(x[Of::sink](b, h, 0, 0) - max) : 0;
  for (const double one : s) sum += std::exp(one - max);
  double loss = 0;
  if (backward.log_sum_exp_gradient)
    loss += (max + std::log(sum)) * static_cast<double>(backward.log_sum_exp_gradient->at(b, h, i, 0));
  for (std::size_t j = 0; j < s.size(); ++j) {
    if (s[j] == -INFINITY) continue;
    double weight = std::exp(s[j] - max) / sum;
    if (c.dropout)
      weight = pattern.weight[j] == 0 ? 0 : weight / (1 - static_cast<double>(c.dropout->drop_probability));
    for (std::int64_t d = 0; d < c.v.shape().dim; ++d)
      loss += weight * x[Of::v](b, c.kv_head(h), static_cast<std::int64_t>(j), d) *
              static_cast<double>(backward.out_gradient.at(b, h, i, d));
  }
  return loss;
}

class Loss {
 public:
  explicit Loss(const BackwardCall& backward) : backward_(backward) {
    const Call& c = backward.call;
    Results like(c, {.log_sum_exp = true});
    const Problem p = make_problem(c.inputs(), like.outputs(), c.options());
    const reference::Numbers numbers(p);
    for_each({c.batch(), c.heads(), c.queries(), 1},
             [&](auto b, auto h, auto i, auto) { patterns_.push_back(reference::row(p, numbers, b, h, i)); });
  }
  double operator()(const Arguments& x) const {
    const Call& c = backward_.call;
    double loss = 0;
    std::size_t n = 0;
    for_each({c.batch(), c.heads(), c.queries(), 1},
             [&](auto b, auto h, auto i, auto) { loss += loss_of(backward_, x, b, h, i, patterns_[n++]); });
    return loss;
  }

 private:
  const BackwardCall& backward_;
  std::vector<reference::Row> patterns_;
};

// The rules take out and the log-sum-exp as they were saved, rounded to f32; these are the same to within
// that.
void expect_derivative(const BackwardCall& backward, std::int64_t& compared) {
  Arguments x;
  for (const Of of : every_gradient)
    if (const Tensor* t = backward.argument(of)) x[of] = Numbers(*t);
  const Loss loss(backward);
  BackwardResults got(backward, DType::f32);
  differentiate(backward, got, "reference");
  for (const Of of : every_gradient) {
    if (!backward.argument(of)) continue;
    for_each(x[of].shape, [&](auto b, auto h, auto i, auto d) {
      double& one = x[of].x[x[of].index(b, h, i, d)];
      const double before = one, step = 1e-5;
      if (std::isinf(before)) {
        EXPECT_EQ(got[of]->at(b, h, i, d), 0) << name_of(of) << Place{b, h, i, d};
        return;
      }
      one = before + step;
      const double above = loss(x);
      one = before - step;
      const double below = loss(x);
      one = before;
      const double expected = (above - below) / (2 * step);
      EXPECT_NEAR(got[of]->at(b, h, i, d), expected, 2e-5 * (1 + std::abs(expected)))
          << name_of(of) << Place{b, h, i, d};
      ++compared;
    });
  }
}

TEST(ReferenceGradient, is_the_derivative_of_the_loss_by_every_argument) {
  std::int64_t compared = 0;
  for (const std::uint64_t seed : seeds(1, 200)) {
    Call call = random_call(seed, {.max_queries = 4,
                                   .max_keys = 6,
                                   .max_batch = 2,
                                   .long_keys = false,
                                   .dropout = true,
                                   .halves = false});
    if (call.q.shape().dim > 8 || call.v.shape().dim > 8) continue;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    expect_derivative(BackwardCall(call, seed ^ 0xD0u, seed % 2 == 0), compared);
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace heed::cases
