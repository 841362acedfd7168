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
  return dropped(p, b, h, i, j) ? 0 : 1 / (1.0 - static_cast<double>(p.options.dropout->drop_probability));
}

}  // namespace

double scale_of(const Problem& p) {
  return p.options.scale.value_or(1 / std::sqrt(static_cast<double>(p.dim)));
}

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
  const double scale = scale_of(p);
  const bool accumulate = g.given.accumulate;
  write_all(g.given.q, sums.q, scale, accumulate);
  write_all(g.given.k, sums.k, scale, accumulate);
  write_all(g.given.v, sums.v, 1, accumulate);
  write_all(g.given.bias, sums.bias, 1, accumulate);
  write_all(g.given.sink, sums.sink, 1, accumulate);
}

namespace {

bool any(const std::vector<unsigned char>& unfinished, std::int64_t first, std::int64_t count) {
  if (unfinished.empty()) return false;
  const auto from = unfinished.begin() + first;
  return std::any_of(from, from + count, [](unsigned char x) { return x != 0; });
}

bool any(const std::vector<unsigned char>& unfinished) { return any(unfinished, 0, std::ssize(unfinished)); }

}  // namespace

GradientCompletion::GradientCompletion(const GradientProblem& problem, const UnfinishedGradients& what)
    : g_(problem), left_(what) {
  has_shared_ = any(left_.bias) || any(left_.sink);
  const Problem& p = g_.forward;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.kv_heads; ++h)
      if (has_left(b, h)) entries_.push_back({b, h});
  numbers_.emplace(g_);
  sums_.emplace(g_);
  sums_->bias.reset(), sums_->sink.reset();
}

std::size_t GradientCompletion::parts() const { return entries_.size() + (has_shared_ ? 1 : 0); }

void GradientCompletion::run(std::size_t part) {
  if (part < entries_.size())
    complete(entries_[part]);
  else
    complete_shared();
}

bool GradientCompletion::is_unfinished_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
  const std::int64_t queries = g_.forward.sequences[static_cast<std::size_t>(b)].queries;
  return any(left_.q, left_.first_row[static_cast<std::size_t>(b)] + h * queries + i, 1);
}

bool GradientCompletion::has_left_keys(std::int64_t b, std::int64_t kv_head) const {
  const std::int64_t keys = g_.forward.sequences[static_cast<std::size_t>(b)].keys,
                     first = left_.first_key[static_cast<std::size_t>(b)] + kv_head * keys;
  return any(left_.k, first, keys) || any(left_.v, first, keys);
}

bool GradientCompletion::has_left(std::int64_t b, std::int64_t kv_head) const {
  const Problem& p = g_.forward;
  for (std::int64_t h = 0; h < p.heads; ++h)
    for (std::int64_t i = 0; p.kv_head(h) == kv_head && i < p.sequences[static_cast<std::size_t>(b)].queries;
         ++i)
      if (is_unfinished_row(b, h, i)) return true;
  return has_left_keys(b, kv_head);
}

// A key's gradients are sums over all rows, a query's over one.
void GradientCompletion::complete(const Entry& at) {
  const Problem& p = g_.forward;
  const Sequence& s = p.sequences[static_cast<std::size_t>(at.b)];
  const bool all_rows = has_left_keys(at.b, at.kv_head);
  for (std::int64_t h = 0; h < p.heads; ++h)
    for (std::int64_t i = 0; p.kv_head(h) == at.kv_head && i < s.queries; ++i) {
      const bool is_left = is_unfinished_row(at.b, h, i);
      if (all_rows || is_left)
        add(g_, *numbers_, gradient_row(g_, *numbers_, at.b, h, i), at.b, h, i, *sums_);
      if (is_left) write_row(*g_.q, *sums_->q, scale_of(p), {at.b, h, s.first_query + i, 0});
    }
  for (std::int64_t j = 0; j < s.keys; ++j) {
    const std::int64_t key = left_.first_key[static_cast<std::size_t>(at.b)] + at.kv_head * s.keys + j;
    const Shape place{at.b, at.kv_head, s.first_key + j, 0};
    if (any(left_.k, key, 1)) write_row(*g_.k, *sums_->k, scale_of(p), place);
    if (any(left_.v, key, 1)) write_row(*g_.v, *sums_->v, 1, place);
  }
}

void GradientCompletion::complete_shared() {
  const Problem& p = g_.forward;
  GradientSums sums(g_);
  sums.q.reset(), sums.k.reset(), sums.v.reset();
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.sequences[static_cast<std::size_t>(b)].queries; ++i)
        add(g_, *numbers_, gradient_row(g_, *numbers_, b, h, i), b, h, i, sums);
  if (any(left_.bias)) write_elements(left_.bias, *g_.given.bias, *sums.bias);
  if (any(left_.sink)) write_elements(left_.sink, *g_.given.sink, *sums.sink);
}

void GradientCompletion::write_element(const MutableView& to, const Shape& at, double value) const {
  const double before = g_.given.accumulate ? read(to, at.batch, at.heads, at.length, at.dim) : 0;  // G8
  write(to, at.batch, at.heads, at.length, at.dim, before + value);
}

void GradientCompletion::write_row(const MutableView& to, SumTensor& from, double factor, Shape at) const {
  for (at.dim = 0; at.dim < to.shape.dim; ++at.dim)
    write_element(to, at, factor * from.at(at.batch, at.heads, at.length, at.dim).value);
}

void GradientCompletion::write_elements(const std::vector<unsigned char>& unfinished, const MutableView& to,
                                        SumTensor& from) const {
  std::size_t n = 0;
  for (std::int64_t b = 0; b < to.shape.batch; ++b)
    for (std::int64_t h = 0; h < to.shape.heads; ++h)
      for (std::int64_t i = 0; i < to.shape.length; ++i)
        for (std::int64_t d = 0; d < to.shape.dim; ++d)
          if (unfinished[n++]) write_element(to, {b, h, i, d}, from.at(b, h, i, d).value);
}

}  // namespace heed::reference
