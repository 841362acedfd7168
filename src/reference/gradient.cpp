// SPDX-License-Identifier: Apache-2.0
// The gradients, as docs/spec.md writes them down: rules G1 and on. Scores and masks are those of row().
#include "reference/gradient.hpp"

#include <algorithm>
#include <limits>

namespace heed::reference {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

// What a dropped or kept weight is multiplied with (S7).
double keep_factor(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  if (!p.options.dropout) return 1;
  return dropped(p, b, h, i, j) ? 0 : 1 / (1.0 - p.options.dropout->drop_probability);
}

}  // namespace

GradientRow gradient_row(const GradientProblem& g, const GradientNumbers& numbers, std::int64_t b,
                         std::int64_t h, std::int64_t i) {
  const Problem& p = g.forward;
  const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
  const std::int64_t query = s.first_query + i;
  const auto keys = static_cast<std::size_t>(p.keys);
  GradientRow r{.scores = row(p, numbers.forward, b, h, i),
                .weight = std::vector<double>(keys),
                .weight_gradient = std::vector<double>(keys),
                .applied = std::vector<Term>(keys),
                .score = std::vector<Term>(keys),
                .raw = std::vector<Term>(keys)};
  const auto unseen = [](double x) { return x == minus_infinity; };
  const double of_lse = g.log_sum_exp_gradient ? read(*g.log_sum_exp_gradient, b, h, query, 0) : 0;
  r.log_sum_exp = read(g.log_sum_exp, b, h, query, 0);
  r.sees_no_key =
      std::all_of(r.scores.biased.begin(), r.scores.biased.end(), unseen) || r.log_sum_exp == minus_infinity;
  if (r.sees_no_key) {  // G6: its log-sum-exp is the sink, and nothing else of it is read
    r.sink.value = of_lse;
    return r;
  }
  const double* from_out = numbers.out_gradient(b, h, query);
  r.delta = dot(from_out, numbers.out(b, h, query), p.value_dim);  // G3
  for (std::int64_t j = 0; j < s.keys; ++j) {
    const auto n = static_cast<std::size_t>(j);
    if (unseen(r.scores.biased[n])) continue;                    // G6
    r.weight[n] = std::exp(r.scores.biased[n] - r.log_sum_exp);  // G1
    const double keep = keep_factor(p, b, h, i, j);
    r.applied[n].value = r.weight[n] * keep;  // G2
    const double* value = numbers.forward.v(b, p.kv_head(h), s.first_key + j);
    r.weight_gradient[n] = keep * dot(from_out, value, p.value_dim) - r.delta + of_lse;
    r.score[n].value = r.weight[n] * r.weight_gradient[n];  // G3
    const double t = p.options.softcap ? r.scores.softcapped[n] / *p.options.softcap : 0;
    r.raw[n].value = r.score[n].value * (1 - t * t);  // G4
  }
  if (p.sink) r.sink.value = std::exp(read(*p.sink, b, h, 0, 0) - r.log_sum_exp) * (of_lse - r.delta);  // G7
  return r;
}

Sum& SumTensor::at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  const auto index = [](std::int64_t n, std::int64_t extent) { return extent == 1 ? 0 : n; };
  const std::int64_t head = index(b, shape.batch) * shape.heads + index(h, shape.heads);
  return sums[static_cast<std::size_t>((head * shape.length + index(i, shape.length)) * shape.dim +
                                       index(d, shape.dim))];
}

GradientSums::GradientSums(const GradientProblem& g) {
  if (g.q) q.emplace(g.given.q->shape);
  if (g.k) k.emplace(g.given.k->shape);
  if (g.v) v.emplace(g.given.v->shape);
  if (g.bias) bias.emplace(g.given.bias->shape);
  if (g.sink) sink.emplace(g.given.sink->shape);
}

void add(const GradientProblem& g, const GradientNumbers& numbers, const GradientRow& r, std::int64_t b,
         std::int64_t h, std::int64_t i, GradientSums& into) {
  const Problem& p = g.forward;
  const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
  const std::int64_t query = s.first_query + i, kv_head = p.kv_head(h);  // S8
  if (into.sink) into.sink->at(b, h, 0, 0).add(r.sink);                  // G7
  if (r.sees_no_key) return;                                             // G6
  const double *q_row = numbers.forward.q(b, h, query), *from_out = numbers.out_gradient(b, h, query);
  for (std::int64_t j = 0; j < s.keys; ++j) {
    const auto n = static_cast<std::size_t>(j);
    if (r.scores.biased[n] == minus_infinity) continue;  // G6
    const std::int64_t key = s.first_key + j;
    const double* k_row = numbers.forward.k(b, kv_head, key);
    for (std::int64_t d = 0; into.v && d < p.value_dim; ++d)
      into.v->at(b, kv_head, key, d).add(r.applied[n], from_out[d]);  // G2
    for (std::int64_t d = 0; into.q && d < p.dim; ++d)
      into.q->at(b, h, query, d).add(r.raw[n], k_row[d]);  // G5
    for (std::int64_t d = 0; into.k && d < p.dim; ++d)
      into.k->at(b, kv_head, key, d).add(r.raw[n], q_row[d]);      // G5
    if (into.bias) into.bias->at(b, h, query, j).add(r.score[n]);  // G4
  }
}

namespace {

void write_all(const std::optional<MutableView>& to, std::optional<SumTensor>& from, double factor,
               bool accumulate) {
  if (!to) return;
  for (std::int64_t b = 0; b < to->shape.batch; ++b)
    for (std::int64_t h = 0; h < to->shape.heads; ++h)
      for (std::int64_t i = 0; i < to->shape.length; ++i)
        for (std::int64_t d = 0; d < to->shape.dim; ++d) {
          const double before = accumulate ? read(*to, b, h, i, d) : 0;  // G8
          write(*to, b, h, i, d, before + factor * from->at(b, h, i, d).value);
        }
}

}  // namespace

void run(const GradientProblem& g) {
  const Problem& p = g.forward;
  const GradientNumbers numbers(g);
  GradientSums sums(g);
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.sequences[static_cast<std::size_t>(b)].queries; ++i)
        add(g, numbers, gradient_row(g, numbers, b, h, i), b, h, i, sums);
  const double scale = *p.options.scale;
  const bool accumulate = g.given.accumulate;
  write_all(g.given.q, sums.q, scale, accumulate);
  write_all(g.given.k, sums.k, scale, accumulate);
  write_all(g.given.v, sums.v, 1, accumulate);
  write_all(g.given.bias, sums.bias, 1, accumulate);
  write_all(g.given.sink, sums.sink, 1, accumulate);
}

}  // namespace heed::reference
