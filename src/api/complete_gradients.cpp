// SPDX-License-Identifier: Apache-2.0
#include "api/complete_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "api/wide_rows.hpp"
#include "api/wide_scores.hpp"
#include "reference/gradient.hpp"
#include "threads/pool.hpp"

namespace heed::api {
namespace {

using reference::SumTensor;

constexpr std::int64_t panel_rows = 24;  // that a task has

std::size_t unsign(std::int64_t n) { return static_cast<std::size_t>(n); }

// What dS is the gradient by: the score, or the product before the softcap. Or weights alone are wanted.
enum class By : std::uint8_t { score, product, nothing };

// Some rows of a KV head with all its keys: of every pair the weight after dropout and the gradient (G1 to
// G4), 0 where the key is not seen.
struct RowPairs {
  RowPairs(std::int64_t rows, std::int64_t row_step, const Problem& p)
      : step(row_step),
        q(rows, p.dim),
        from_out(rows, p.value_dim),
        applied(std::make_unique_for_overwrite<double[]>(unsign(rows * step))),
        gradient(std::make_unique_for_overwrite<double[]>(unsign(rows * step))),
        sees(unsign(rows * step)),
        weights_left(unsign(rows)),
        sink(unsign(rows)) {}

  // Whether most weights of some rows are 0, and so most gradients.
  bool are_few(std::int64_t first, std::int64_t count) const {
    const auto from = weights_left.begin() + first;
    return std::accumulate(from, from + count, std::int64_t{0}) < count * step / 4;
  }

  std::int64_t step;  // from one row's to the next
  WideRows q, from_out;
  std::unique_ptr<double[]> applied, gradient;
  std::vector<unsigned char> sees;
  std::vector<std::int64_t> weights_left;  // of each row that are not 0
  std::vector<double> sink;                // what each row adds to the gradient by the sink (G7)
};

// What of a row's pairs is NaN whatever the products are: all weights, or all gradients.
enum class Spoiled : std::uint8_t { nothing, gradients, weights };

// A KV head, and what its rows have with its keys. The steps are those of reference::gradient_row.
class GradientHead {
 public:
  GradientHead(const GradientProblem& problem, const WideScores& scores, std::int64_t b, std::int64_t kv_head)
      : g_(problem),
        p_(problem.forward),
        scores_(scores),
        s_(p_.sequences[unsign(b)]),
        k_(wide_rows(p_.inputs.k, b, kv_head, s_.first_key, s_.keys)),
        key_columns_(p_.inputs.k, b, kv_head, s_.first_key, s_.keys),
        value_columns_(p_.inputs.v, b, kv_head, s_.first_key, s_.keys) {}

  const WideRows& keys() const { return k_; }
  std::int64_t step() const { return key_columns_.step(); }

  // pass(pairs, rows) for some rows after another: what a cache may hold, but at least a panel.
  template <class Pass>
  void for_some_rows(std::span<const WideQuery> rows, By by, const Pass& pass) const {
    constexpr std::int64_t max_pairs = std::int64_t{1} << 21, most = 4 * panel_rows;
    const std::int64_t step = key_columns_.step(),
                       each = std::clamp(max_pairs / (step + 1) / panel_rows * panel_rows, panel_rows, most);
    std::optional<RowPairs> pairs;
    for (std::int64_t first = 0; first < std::ssize(rows); first += each) {
      const auto some = rows.subspan(unsign(first), unsign(std::min(each, std::ssize(rows) - first)));
      if (!pairs || pairs->q.count() != std::ssize(some)) pairs.emplace(std::ssize(some), step, p_);
      fill(*pairs, some, by);
      pass(*pairs, some);
    }
  }

  Spoiled spoiled(const WideQuery&) const;
  // Scores of a row, right in whether a key is seen and in nothing else.
  void find_seen(const WideQuery&, double* scores) const;

 private:
  void fill(RowPairs&, std::span<const WideQuery>, By) const;
  void differentiate(RowPairs&, std::int64_t n, const WideQuery&, By) const;
  double delta(const WideRows& from_out, std::int64_t n, const WideQuery&) const;
  double keep_factor(const WideQuery&, double weight, std::int64_t j) const;

  std::int64_t row(const WideQuery& at) const { return s_.first_query + at.i; }
  double lse(const WideQuery& at) const { return reference::read(g_.log_sum_exp, at.b, at.h, row(at), 0); }
  double from_lse(const WideQuery& at) const {
    return g_.log_sum_exp_gradient ? reference::read(*g_.log_sum_exp_gradient, at.b, at.h, row(at), 0) : 0;
  }

  const GradientProblem& g_;
  const Problem& p_;
  const WideScores& scores_;
  const Sequence& s_;
  const WideRows k_;
  const WideColumns key_columns_, value_columns_;
};

void GradientHead::fill(RowPairs& pairs, std::span<const WideQuery> rows, By by) const {
  for_each_stretch(std::ssize(rows), panel_rows, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t n = first; n < first + count; ++n) {
      const WideQuery& at = rows[unsign(n)];
      pairs.q.read(n, p_.inputs.q, at.b, at.h, row(at));
      pairs.from_out.read(n, g_.out_gradient, at.b, at.h, row(at));
    }
    const std::int64_t end = scores_.keys_of(rows.subspan(unsign(first), unsign(count))).end;
    key_columns_.multiply(pairs.q, first, count, {0, end}, pairs.applied.get() + first * pairs.step);
    if (by != By::nothing)
      value_columns_.multiply(pairs.from_out, first, count, {0, end},
                              pairs.gradient.get() + first * pairs.step);
    for (std::int64_t n = first; n < first + count; ++n) differentiate(pairs, n, rows[unsign(n)], by);
  });
}

double GradientHead::delta(const WideRows& from_out, std::int64_t n, const WideQuery& at) const {
  WideRows out(1, p_.value_dim);
  out.read(0, g_.out, at.b, at.h, row(at));
  double sum = 0;
  for (std::int64_t d = 0; d < p_.value_dim; ++d) sum += from_out.row(n)[d] * out.row(0)[d];
  return sum;
}

double GradientHead::keep_factor(const WideQuery& at, double weight, std::int64_t j) const {
  // Of a weight of 0 nothing is left in any case, unless what it is multiplied with is beyond f64.
  if (!p_.options.dropout || (weight == 0 && p_.inputs.q.dtype != DType::f64)) return 1;
  if (reference::dropped(p_, at.b, at.h, at.i, j)) return 0;
  return 1 / (1.0 - p_.options.dropout->drop_probability);
}

// Of row n: products with keys become weights, products with values gradients.
void GradientHead::differentiate(RowPairs& pairs, std::int64_t n, const WideQuery& at, By by) const {
  double *const x = pairs.applied.get() + n * pairs.step, *const y = pairs.gradient.get() + n * pairs.step;
  unsigned char* const sees = pairs.sees.data() + n * pairs.step;
  const std::int64_t keys = s_.keys;
  std::vector<double> softcapped(p_.options.softcap && by == By::product ? unsign(keys) : 0);
  const double base = lse(at), of_lse = from_lse(at);
  scores_.finish(at, {0, keys}, x, softcapped.empty() ? nullptr : softcapped.data());
  for (std::int64_t j = 0; j < keys; ++j) sees[j] = x[j] != -INFINITY ? 1 : 0;
  std::int64_t& weights = pairs.weights_left[unsign(n)] = 0;
  if (base == -INFINITY || std::find(sees, sees + keys, 1) == sees + keys) {  // G6
    std::fill_n(x, keys, 0.0), std::fill_n(y, keys, 0.0), std::fill_n(sees, keys, 0);
    pairs.sink[unsign(n)] = of_lse;
    return;
  }
  const double less = delta(pairs.from_out, n, at);
  for (std::int64_t j = 0; j < keys; ++j)
    x[j] = sees[j] == 0 || x[j] < base + no_weight ? 0 : std::exp(x[j] - base);  // G1
  weights = keys - std::count(x, x + keys, 0.0);
  for (std::int64_t j = 0; j < keys && by != By::nothing; ++j)
    y[j] = sees[j] == 0 ? 0 : x[j] * (keep_factor(at, x[j], j) * y[j] - less + of_lse);            // G3
  for (std::int64_t j = 0; j < keys && p_.options.dropout; ++j) x[j] *= keep_factor(at, x[j], j);  // G2
  for (std::int64_t j = 0; j < std::ssize(softcapped); ++j) {
    const double t = softcapped[unsign(j)] / *p_.options.softcap;
    if (sees[j] != 0) y[j] *= 1 - t * t;  // G4
  }
  if (p_.sink) {
    const double sink = reference::read(*p_.sink, at.b, at.h, 0, 0);
    pairs.sink[unsign(n)] = std::exp(sink - base) * (of_lse - less);  // G7
  }
}

Spoiled GradientHead::spoiled(const WideQuery& at) const {
  const double base = lse(at);
  if (base == -INFINITY) return Spoiled::nothing;  // G6
  if (std::isnan(base)) return Spoiled::weights;
  WideRows from_out(1, p_.value_dim);
  from_out.read(0, g_.out_gradient, at.b, at.h, row(at));
  return std::isnan(from_lse(at) - delta(from_out, 0, at)) ? Spoiled::gradients : Spoiled::nothing;
}

// The product of numbers is a number, and one with NaN is NaN.
void GradientHead::find_seen(const WideQuery& at, double* scores) const {
  WideRows q(1, p_.dim);
  q.read(0, p_.inputs.q, at.b, at.h, row(at));
  const bool may_overflow = p_.inputs.q.dtype == DType::f64;  // products of other types are numbers in f64
  if (may_overflow || q.any(Kind::infinite) || (k_.any(Kind::infinite) && !q.any(Kind::nan)))
    key_columns_.multiply(q, 0, 1, {0, s_.keys}, scores);
  else
    for (std::int64_t j = 0; j < s_.keys; ++j)
      scores[j] = q.any(Kind::nan) || k_.kind(j) == Kind::nan ? NAN : 0;
  scores_.finish(at, {0, s_.keys}, scores);
}

class GradientCompletion {
 public:
  GradientCompletion(const GradientProblem& problem, const UnfinishedGradients& unfinished)
      : g_(problem), p_(problem.forward), left_(unfinished), scores_(problem.forward) {}

  void run();

 private:
  using Marks = std::vector<unsigned char>;
  static bool any(const Marks& marks, std::int64_t first, std::int64_t count) {
    if (marks.empty()) return false;
    const auto from = marks.begin() + first;
    return std::any_of(from, from + count, [](unsigned char mark) { return mark != 0; });
  }
  static bool any(const Marks& marks) { return any(marks, 0, std::ssize(marks)); }

  const Sequence& sequence(std::int64_t b) const { return p_.sequences[unsign(b)]; }
  std::int64_t mark_of(const WideQuery& at) const {
    return left_.first_row[unsign(at.b)] + at.h * sequence(at.b).queries + at.i;
  }
  bool is_left(const WideQuery& at) const { return any(left_.q, mark_of(at), 1); }
  // Of the marks of a KV head's keys.
  std::int64_t first_key(std::int64_t b, std::int64_t kv_head) const {
    return left_.first_key[unsign(b)] + kv_head * sequence(b).keys;
  }

  std::vector<WideQuery> rows_of(std::int64_t b, std::int64_t h) const;
  void complete_head(std::int64_t b, std::int64_t kv_head);
  void settle_rows(const GradientHead&, std::span<const WideQuery>, std::int64_t b, std::int64_t kv_head);
  void complete_queries(const GradientHead&, const RowPairs&, std::span<const WideQuery>) const;
  void write_row(const MutableView&, Shape at, double factor, const double* sums) const;
  void write_keys(const Marks&, const MutableView&, const std::vector<double>& sums, double factor,
                  std::int64_t b, std::int64_t kv_head) const;
  void complete_shared() const;
  void write_elements(const Marks&, const MutableView&, SumTensor&) const;
  void write_element(const MutableView&, const Shape& at, double value) const;

  const GradientProblem& g_;
  const Problem& p_;
  UnfinishedGradients left_;  // marks go when their rows are written
  const WideScores scores_;
};

// Heads one after another, which share their threads, or as many at once as there are threads.
void GradientCompletion::run() {
  const auto heads = unsign(p_.batch * p_.kv_heads);
  const auto complete = [this](std::size_t n) {
    complete_head(static_cast<std::int64_t>(n) / p_.kv_heads, static_cast<std::int64_t>(n) % p_.kv_heads);
  };
  if (heads >= 4 * threads::concurrency())
    threads::throwing_parallel_for(heads, complete);
  else
    for (std::size_t n = 0; n < heads; ++n) complete(n);
  if (any(left_.bias) || any(left_.sink)) complete_shared();
}

std::vector<WideQuery> GradientCompletion::rows_of(std::int64_t b, std::int64_t h) const {
  std::vector<WideQuery> rows;
  for (std::int64_t i = 0; i < sequence(b).queries; ++i) rows.push_back({b, h, i});
  return rows;
}

// A key's gradients are sums over all rows, a query's over one.
void GradientCompletion::complete_head(std::int64_t b, std::int64_t kv_head) {
  const std::int64_t keys = sequence(b).keys, first = first_key(b, kv_head);
  std::vector<WideQuery> all, rows;
  for (std::int64_t h = 0; h < p_.heads; ++h)
    if (p_.kv_head(h) == kv_head) std::ranges::copy(rows_of(b, h), std::back_inserter(all));
  const auto find_left = [&] {
    const bool has_keys = any(left_.k, first, keys) || any(left_.v, first, keys);
    rows.clear();
    std::ranges::copy_if(all, std::back_inserter(rows),
                         [&](const WideQuery& row) { return has_keys || is_left(row); });
    return !rows.empty();
  };
  if (!find_left()) return;
  const GradientHead head(g_, scores_, b, kv_head);
  settle_rows(head, rows, b, kv_head);
  if (!find_left()) return;

  const bool has_k = any(left_.k, first, keys), has_v = any(left_.v, first, keys),
             has_q = std::ranges::any_of(rows, [&](const WideQuery& row) { return is_left(row); });
  const WideRows like_k(0, p_.dim), like_v(0, p_.value_dim);
  std::vector<double> k(has_k ? unsign(keys * like_k.width()) : 0),
      v(has_v ? unsign(keys * like_v.width()) : 0);
  head.for_some_rows(rows, has_q || has_k ? By::product : By::nothing, [&](const RowPairs& pairs, auto some) {
    if (has_q) complete_queries(head, pairs, some);
    constexpr std::int64_t keys_together = 48;
    for_each_stretch(has_k || has_v ? keys : 0, keys_together, [&](std::int64_t j, std::int64_t count) {
      const auto weights = [&](const std::unique_ptr<double[]>& of) -> PairWeights {
        return {of.get() + j, pairs.sees.data() + j, 1, pairs.step, pairs.are_few(0, std::ssize(some))};
      };
      if (has_v)
        add_weighted(weights(pairs.applied), count, pairs.from_out, {0, pairs.from_out.count()},
                     v.data() + j * like_v.width());
      if (has_k)
        add_weighted(weights(pairs.gradient), count, pairs.q, {0, pairs.q.count()},
                     k.data() + j * like_k.width());
    });
  });
  if (has_k) write_keys(left_.k, *g_.k, k, reference::scale_of(p_), b, kv_head);
  if (has_v) write_keys(left_.v, *g_.v, v, 1, b, kv_head);
}

// Rows whose gradients are all NaN, and the keys that they make NaN: NaN stays it, whatever is added.
void GradientCompletion::settle_rows(const GradientHead& head, std::span<const WideQuery> rows,
                                     std::int64_t b, std::int64_t kv_head) {
  const std::int64_t keys = sequence(b).keys, first = first_key(b, kv_head);
  struct Found {
    Marks gradients, weights;
  };
  std::vector<Found> found(rows.size() / unsign(panel_rows) + 1);
  const std::vector<double> nan(unsign(std::max(p_.dim, p_.value_dim)), NAN);
  for_each_stretch(std::ssize(rows), panel_rows, [&](std::int64_t begin, std::int64_t count) {
    std::vector<double> scores(unsign(head.step()));
    Marks sees(unsign(keys));
    auto& [gradients, weights] = found[unsign(begin / panel_rows)];
    for (const WideQuery& at : rows.subspan(unsign(begin), unsign(count))) {
      const Spoiled spoiled = head.spoiled(at);
      if (spoiled == Spoiled::nothing) continue;
      gradients.resize(unsign(keys)), weights.resize(unsign(keys));
      head.find_seen(at, scores.data());
      const std::int64_t end = scores_.keys_of(at).end;
      for (std::int64_t j = 0; j < end; ++j) sees[unsign(j)] = scores[unsign(j)] != -INFINITY ? 1 : 0;
      for (std::int64_t j = 0; j < end; ++j) gradients[unsign(j)] |= sees[unsign(j)];
      for (std::int64_t j = 0; spoiled == Spoiled::weights && j < end; ++j)
        weights[unsign(j)] |= sees[unsign(j)];
      const bool sees_any = any(sees, 0, end);
      if (sees_any && is_left(at))
        write_row(*g_.q, {at.b, at.h, sequence(b).first_query + at.i, 0}, 1, nan.data()),
            left_.q[unsign(mark_of(at))] = 0;
    }
  });
  for (std::int64_t j = 0; j < keys; ++j) {
    const auto is_in = [&](Marks Found::* of) {
      return std::ranges::any_of(found, [&](const Found& some) { return any(some.*of, j, 1); });
    };
    const Shape at{b, kv_head, sequence(b).first_key + j, 0};
    if (any(left_.k, first + j, 1) && is_in(&Found::gradients))
      write_row(*g_.k, at, 1, nan.data()), left_.k[unsign(first + j)] = 0;
    if (any(left_.v, first + j, 1) && is_in(&Found::weights))
      write_row(*g_.v, at, 1, nan.data()), left_.v[unsign(first + j)] = 0;
  }
}

void GradientCompletion::complete_queries(const GradientHead& head, const RowPairs& pairs,
                                          std::span<const WideQuery> rows) const {
  const std::int64_t width = head.keys().width();
  for_each_stretch(std::ssize(rows), panel_rows, [&](std::int64_t first, std::int64_t count) {
    const auto some = rows.subspan(unsign(first), unsign(count));
    if (std::ranges::none_of(some, [&](const WideQuery& at) { return is_left(at); })) return;
    std::vector<double> sums(unsign(count * width));
    add_weighted({pairs.gradient.get() + first * pairs.step, pairs.sees.data() + first * pairs.step,
                  pairs.step, 1, pairs.are_few(first, count)},
                 count, head.keys(), {0, head.keys().count()}, sums.data());
    for (std::int64_t n = 0; n < count; ++n)
      if (const WideQuery& at = some[unsign(n)]; is_left(at))
        write_row(*g_.q, {at.b, at.h, sequence(at.b).first_query + at.i, 0}, reference::scale_of(p_),
                  sums.data() + n * width);
  });
}

void GradientCompletion::write_keys(const Marks& marks, const MutableView& to,
                                    const std::vector<double>& sums, double factor, std::int64_t b,
                                    std::int64_t kv_head) const {
  const std::int64_t keys = sequence(b).keys, width = std::ssize(sums) / keys;
  for (std::int64_t j = 0; j < keys; ++j)
    if (any(marks, first_key(b, kv_head) + j, 1))
      write_row(to, {b, kv_head, sequence(b).first_key + j, 0}, factor, sums.data() + j * width);
}

// Elements that batch entries, heads, queries and keys may share are sums in their order.
void GradientCompletion::complete_shared() const {
  const bool has_bias = any(left_.bias), has_sink = any(left_.sink);
  SumTensor bias(has_bias ? g_.given.bias->shape : Shape{}), sink(has_sink ? g_.given.sink->shape : Shape{});
  for (std::int64_t b = 0; b < p_.batch; ++b)
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      const std::vector<WideQuery> rows = rows_of(b, h);
      const GradientHead head(g_, scores_, b, p_.kv_head(h));
      head.for_some_rows(rows, By::score, [&](const RowPairs& pairs, auto some) {
        for (std::int64_t n = 0; n < std::ssize(some); ++n) {
          if (has_sink) sink.at(b, h, 0, 0).value += pairs.sink[unsign(n)];
          const std::int64_t query = sequence(b).first_query + some[unsign(n)].i;
          for (std::int64_t j = 0; has_bias && j < sequence(b).keys; ++j)
            bias.at(b, h, query, j).value += pairs.gradient[unsign(n * pairs.step + j)];
        }
      });
    }
  if (has_bias) write_elements(left_.bias, *g_.given.bias, bias);
  if (has_sink) write_elements(left_.sink, *g_.given.sink, sink);
}

void GradientCompletion::write_elements(const Marks& marks, const MutableView& to, SumTensor& from) const {
  std::size_t n = 0;
  for (std::int64_t b = 0; b < to.shape.batch; ++b)
    for (std::int64_t h = 0; h < to.shape.heads; ++h)
      for (std::int64_t i = 0; i < to.shape.length; ++i)
        for (std::int64_t d = 0; d < to.shape.dim; ++d)
          if (marks[n++] != 0) write_element(to, {b, h, i, d}, from.at(b, h, i, d).value);
}

void GradientCompletion::write_row(const MutableView& to, Shape at, double factor, const double* sums) const {
  for (at.dim = 0; at.dim < to.shape.dim; ++at.dim) write_element(to, at, factor * sums[at.dim]);
}

void GradientCompletion::write_element(const MutableView& to, const Shape& at, double value) const {
  const double before = g_.given.accumulate ? reference::read(to, at.batch, at.heads, at.length, at.dim) : 0;
  reference::write(to, at.batch, at.heads, at.length, at.dim, before + value);  // G8
}

}  // namespace

void complete_gradients(const GradientProblem& problem, const UnfinishedGradients& unfinished) {
  GradientCompletion(problem, unfinished).run();
}

}  // namespace heed::api
