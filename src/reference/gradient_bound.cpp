// SPDX-License-Identifier: Apache-2.0
#include "reference/gradient_bound.hpp"

#include <algorithm>

#include "reference/bound.hpp"

namespace heed::reference {
namespace {

// A sum runs in blocks: chains of up to so many terms, and one addition for each block of at least so many.
constexpr std::int64_t longest_chain = 192, shortest_block = 96;

constexpr double min_spacing = 0x1p-149;  // of f32: what a sum of subnormals may lose

// Matrix instructions take bf16 throughout. The bound does not ask whether they were used.
bool may_use_matrices(const GradientProblem& g) {
  return g.forward.inputs.q.dtype == DType::bf16 && g.out_gradient.dtype == DType::bf16;
}

double sum_of_magnitudes(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t d = 0; d < n; ++d) sum += std::abs(a[d] * b[d]);
  return sum;
}

// What matrix instructions lose of a sum of products: those with a subnormal factor, and of each product,
// pair and sum what is subnormal.
double flushed_of(const double* a, const double* b, std::int64_t n) {
  double sum = 2 * static_cast<double>(n) * min_normal;
  for (std::int64_t d = 0; d < n; ++d)
    if (std::abs(a[d]) < min_normal || std::abs(b[d]) < min_normal) sum += std::abs(a[d] * b[d]);
  return sum;
}

// A term on its way into matrix instructions: it is rounded to bf16, and lost where it is subnormal. Of its
// product with a number they lose what is subnormal, the number too, and of the pair and the sum it becomes
// part of.
void round_for_matrices(Term& t) {
  if (std::isinf(t.error)) return;  // nothing is known of it, and its value may be no number
  const double most = std::abs(t.value) + t.error;
  t.error += roundoff(DType::bf16) * most + min_normal;
  t.lost = min_normal * (3 + most);
}

// Of a weight exp(x) whose x is off by up to `of_score`.
double weight_error(double x, double of_score) {
  if (x == -INFINITY) return underflow;  // by a log-sum-exp of +inf: whatever the errors are, nothing is left
  const double grown = std::exp(x + of_score);
  return grown * (-std::expm1(-of_score) + exp2_error + u) + underflow;
}

// Of the product of two numbers, each with its error, rounded once.
Term product(const Term& a, const Term& b) {
  const double value = a.value * b.value, max_a = std::abs(a.value) + a.error;
  if (std::isinf(a.error) || std::isinf(b.error)) return {value, INFINITY};
  return {value, a.error * std::abs(b.value) + max_a * b.error + u * max_a * (std::abs(b.value) + b.error) +
                     half_spacing};
}

}  // namespace

void add_errors(const GradientProblem& g, const GradientNumbers& numbers, std::int64_t b, std::int64_t h,
                std::int64_t i, GradientRow& r) {
  const Problem& p = g.forward;
  const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
  const std::int64_t query = s.first_query + i;
  if (r.sees_no_key) return;
  const RowBound of_scores(p, numbers.forward, r.scores, b, h, i);
  const bool has_matrices = may_use_matrices(g);
  const double lse = std::abs(r.log_sum_exp),
               width = has_matrices ? static_cast<double>(p.value_dim) + 1 : chained_roundings(p.value_dim);
  const double exponent_error = of_scores.score_error() + 3 * u * (lse + of_scores.largest_score());
  const double* from_out = numbers.out_gradient(b, h, query);
  const double of_lse = g.log_sum_exp_gradient ? std::abs(read(*g.log_sum_exp_gradient, b, h, query, 0)) : 0;
  const double delta = sum_of_magnitudes(from_out, numbers.out(b, h, query), p.value_dim) + of_lse;
  const double keep =
      p.options.dropout ? 1 / (1.0 - static_cast<double>(p.options.dropout->drop_probability)) : 1;
  for (std::int64_t j = 0; j < s.keys; ++j) {
    const auto n = static_cast<std::size_t>(j);
    if (r.scores.biased[n] == -INFINITY) continue;
    const double* value = numbers.forward.v(b, p.kv_head(h), s.first_key + j);
    const double from_value = keep * sum_of_magnitudes(from_out, value, p.value_dim),
                 flushed = has_matrices ? keep * flushed_of(from_out, value, p.value_dim) : 0;
    const Term weight{r.weight[n], weight_error(r.scores.biased[n] - r.log_sum_exp, exponent_error)};
    const Term gradient{r.weight_gradient[n],
                        gamma(width + 4) * (from_value + delta) + flushed + (width + 4) * keep * min_spacing};
    r.applied[n].error = product(weight, {keep, gamma(1) * keep}).error;
    r.score[n].error = product(weight, gradient).error;
    r.raw[n].error = r.score[n].error;
    if (const std::optional<float> c = p.options.softcap) {
      const double t = r.scores.softcapped[n] / *c;
      const Term slope{1 - t * t, 2 * (of_scores.score_error() / *c + tanh_error) + 2 * u};
      r.raw[n].error = product(r.score[n], slope).error;
    }
    if (!has_matrices) continue;
    round_for_matrices(r.applied[n]);
    round_for_matrices(r.raw[n]);
  }
  if (!p.sink) return;
  const double sink = read(*p.sink, b, h, 0, 0);
  const Term weight{std::exp(sink - r.log_sum_exp),
                    weight_error(sink - r.log_sum_exp, 3 * u * (std::abs(sink) + lse))};
  const Term gradient{delta, gamma(width + 2) * delta + (width + 4) * min_spacing};
  r.sink.error = product(weight, gradient).error;
}

double roundings_of(const GradientProblem& g, std::int64_t terms) {
  // Matrix instructions go on in one chain, whose roundings may be to odd: twice as much for every second
  // term.
  if (may_use_matrices(g)) return static_cast<double>(terms + 3);
  return static_cast<double>(std::min(terms, longest_chain) + terms / shortest_block);
}

double bound_of(const Sum& sum, double roundings, double factor, DType dtype) {
  // Three more are the default scale, the product with it, and the addition of +0 or of what was there.
  if (std::isinf(sum.error)) return sum.error;
  const double most =
      std::abs(factor) * (sum.error + gamma(roundings + 4) * sum.magnitude + (roundings + 4) * min_spacing);
  return most + roundoff(dtype) * (std::abs(factor * sum.value) + most) + smallest(dtype);
}

}  // namespace heed::reference
