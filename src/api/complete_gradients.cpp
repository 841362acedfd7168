// SPDX-License-Identifier: Apache-2.0
#include "api/complete_gradients.hpp"

#include <algorithm>
#include <cmath>
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

// What dS is the gradient by: the score, or the product before the softcap.
enum class By : std::uint8_t { score, product };

// Some rows of a KV head with all its keys: of every pair the weight after dropout and the gradient (G1 to
// G4), 0 where the key is not seen.
struct RowPairs {
  RowPairs(std::int64_t rows, std::int64_t row_step, const Problem& p)
      : step(row_step),
        q(rows, p.dim),
        from_out(rows, p.value_dim),
        applied(unsign(rows * step)),
        gradient(unsign(rows * step)),
        sees(unsign(rows * step)),
        sink(unsign(rows)) {}

  std::int64_t step;  // from one row's to the next
  WideRows q, from_out;
  std::vector<double> applied, gradient;
  std::vector<unsigned char> sees;
  std::vector<double> sink;  // what each row adds to the gradient by the sink (G7)
};

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

  // Rows that are taken at once: 16 MiB of each number of a pair, but at least a panel.
  std::int64_t rows_at_once() const {
    constexpr std::int64_t max_pairs = std::int64_t{1} << 21, most = 10 * panel_rows;
    return std::clamp(max_pairs / (key_columns_.step() + 1) / panel_rows * panel_rows, panel_rows, most);
  }

  RowPairs pairs(std::span<const WideQuery> rows, By) const;

 private:
  void read(RowPairs&, std::int64_t n, const WideQuery&) const;
  void differentiate(RowPairs&, std::int64_t n, const WideQuery&, By) const;
  double delta(const RowPairs&, std::int64_t n, const WideQuery&) const;
  double keep_factor(const WideQuery&, std::int64_t j) const;
  double read_one(const View& x, const WideQuery& at) const {
    return reference::read(x, at.b, at.h, s_.first_query + at.i, 0);
  }

  const GradientProblem& g_;
  const Problem& p_;
  const WideScores& scores_;
  const Sequence& s_;
  const WideRows k_;
  const WideColumns key_columns_, value_columns_;
};

RowPairs GradientHead::pairs(std::span<const WideQuery> rows, By by) const {
  RowPairs pairs(std::ssize(rows), key_columns_.step(), p_);
  for_each_stretch(std::ssize(rows), panel_rows, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t n = first; n < first + count; ++n) read(pairs, n, rows[unsign(n)]);
    key_columns_.multiply(pairs.q, first, count, pairs.applied.data() + first * pairs.step);
    value_columns_.multiply(pairs.from_out, first, count, pairs.gradient.data() + first * pairs.step);
    for (std::int64_t n = first; n < first + count; ++n) differentiate(pairs, n, rows[unsign(n)], by);
  });
  return pairs;
}

void GradientHead::read(RowPairs& pairs, std::int64_t n, const WideQuery& at) const {
  pairs.q.read(n, p_.inputs.q, at.b, at.h, s_.first_query + at.i);
  pairs.from_out.read(n, g_.out_gradient, at.b, at.h, s_.first_query + at.i);
}

double GradientHead::delta(const RowPairs& pairs, std::int64_t n, const WideQuery& at) const {
  WideRows out(1, p_.value_dim);
  out.read(0, g_.out, at.b, at.h, s_.first_query + at.i);
  double sum = 0;
  for (std::int64_t d = 0; d < p_.value_dim; ++d) sum += pairs.from_out.row(n)[d] * out.row(0)[d];
  return sum;
}

double GradientHead::keep_factor(const WideQuery& at, std::int64_t j) const {
  if (!p_.options.dropout) return 1;
  if (reference::dropped(p_, at.b, at.h, at.i, j)) return 0;
  return 1 / (1.0 - static_cast<double>(p_.options.dropout->drop_probability));
}

// Of row n: products with keys become weights, products with values gradients.
void GradientHead::differentiate(RowPairs& pairs, std::int64_t n, const WideQuery& at, By by) const {
  double *const x = pairs.applied.data() + n * pairs.step, *const y = pairs.gradient.data() + n * pairs.step;
  unsigned char* const sees = pairs.sees.data() + n * pairs.step;
  const std::optional<double> cap = p_.options.softcap;
  std::vector<double> softcapped(cap && by == By::product ? unsign(s_.keys) : 0);
  const double lse = read_one(g_.log_sum_exp, at),
               of_lse = g_.log_sum_exp_gradient ? read_one(*g_.log_sum_exp_gradient, at) : 0;
  scores_.finish(at, x, softcapped.empty() ? nullptr : softcapped.data());
  const bool sees_no_key =
      lse == -INFINITY || std::all_of(x, x + s_.keys, [](double score) { return score == -INFINITY; });
  if (sees_no_key) {  // G6
    std::fill_n(x, s_.keys, 0.0), std::fill_n(y, s_.keys, 0.0);
    pairs.sink[unsign(n)] = of_lse;
    return;
  }
  const double less = delta(pairs, n, at);
  for (std::int64_t j = 0; j < s_.keys; ++j) {
    sees[j] = x[j] != -INFINITY ? 1 : 0;
    if (sees[j] == 0) {
      x[j] = y[j] = 0;  // G6
      continue;
    }
    const double weight = weight_of(x[j] - lse);  // G1
    const double keep = keep_factor(at, j);
    x[j] = weight * keep;                           // G2
    y[j] = weight * (keep * y[j] - less + of_lse);  // G3
    const double t = softcapped.empty() ? 0 : softcapped[unsign(j)] / *cap;
    y[j] *= 1 - t * t;  // G4
  }
  if (p_.sink) {
    const double sink = reference::read(*p_.sink, at.b, at.h, 0, 0);
    pairs.sink[unsign(n)] = std::exp(sink - lse) * (of_lse - less);  // G7
  }
}

class GradientCompletion {
 public:
  GradientCompletion(const GradientProblem& problem, const UnfinishedGradients& unfinished)
      : g_(problem), p_(problem.forward), left_(unfinished), scores_(problem.forward) {}

  void run() const;

 private:
  using Marks = std::vector<unsigned char>;
  static bool any(const Marks& marks, std::int64_t first, std::int64_t count) {
    if (marks.empty()) return false;
    const auto from = marks.begin() + first;
    return std::any_of(from, from + count, [](unsigned char mark) { return mark != 0; });
  }
  static bool any(const Marks& marks) { return any(marks, 0, std::ssize(marks)); }

  const Sequence& sequence(std::int64_t b) const { return p_.sequences[unsign(b)]; }
  bool is_left(const WideQuery& at) const {
    return any(left_.q, left_.first_row[unsign(at.b)] + at.h * sequence(at.b).queries + at.i, 1);
  }
  // Of the marks of a KV head's keys.
  std::int64_t first_key(std::int64_t b, std::int64_t kv_head) const {
    return left_.first_key[unsign(b)] + kv_head * sequence(b).keys;
  }

  std::vector<WideQuery> rows_of(std::int64_t b, std::int64_t h) const;
  void complete_head(std::int64_t b, std::int64_t kv_head) const;
  void complete_queries(const GradientHead&, const RowPairs&, std::span<const WideQuery>) const;
  void write_keys(const Marks&, const MutableView&, const std::vector<double>& sums, double factor,
                  std::int64_t b, std::int64_t kv_head) const;
  void complete_shared() const;
  void write_elements(const Marks&, const MutableView&, SumTensor&) const;
  void write_element(const MutableView&, const Shape& at, double value) const;

  const GradientProblem& g_;
  const Problem& p_;
  const UnfinishedGradients& left_;
  const WideScores scores_;
};

// Heads one after another, which share their threads, or as many at once as there are threads.
void GradientCompletion::run() const {
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
void GradientCompletion::complete_head(std::int64_t b, std::int64_t kv_head) const {
  const std::int64_t keys = sequence(b).keys, first = first_key(b, kv_head);
  const bool has_k = any(left_.k, first, keys), has_v = any(left_.v, first, keys);
  std::vector<WideQuery> rows;
  for (std::int64_t h = 0; h < p_.heads; ++h)
    for (const WideQuery& row : p_.kv_head(h) == kv_head ? rows_of(b, h) : std::vector<WideQuery>())
      if (has_k || has_v || is_left(row)) rows.push_back(row);
  if (rows.empty()) return;
  const GradientHead head(g_, scores_, b, kv_head);
  const WideRows like_k(0, p_.dim), like_v(0, p_.value_dim);
  std::vector<double> k(has_k ? unsign(keys * like_k.width()) : 0),
      v(has_v ? unsign(keys * like_v.width()) : 0);
  const auto at_once = unsign(head.rows_at_once());
  for (std::size_t n = 0; n < rows.size(); n += at_once) {
    const auto some = std::span(rows).subspan(n, std::min(at_once, rows.size() - n));
    const RowPairs pairs = head.pairs(some, By::product);
    complete_queries(head, pairs, some);
    constexpr std::int64_t keys_together = 48;
    for_each_stretch(keys, keys_together, [&](std::int64_t j, std::int64_t count) {
      const auto weights = [&](const std::vector<double>& of) -> PairWeights {
        return {of.data() + j, pairs.sees.data() + j, 1, pairs.step};
      };
      if (has_v) add_weighted(weights(pairs.applied), count, pairs.from_out, v.data() + j * like_v.width());
      if (has_k) add_weighted(weights(pairs.gradient), count, pairs.q, k.data() + j * like_k.width());
    });
  }
  if (has_k) write_keys(left_.k, *g_.k, k, reference::scale_of(p_), b, kv_head);
  if (has_v) write_keys(left_.v, *g_.v, v, 1, b, kv_head);
}

void GradientCompletion::complete_queries(const GradientHead& head, const RowPairs& pairs,
                                          std::span<const WideQuery> rows) const {
  if (!g_.q) return;
  const std::int64_t width = head.keys().width();
  const double scale = reference::scale_of(p_);
  for_each_stretch(std::ssize(rows), panel_rows, [&](std::int64_t first, std::int64_t count) {
    std::vector<double> sums(unsign(count * width));
    add_weighted(
        {pairs.gradient.data() + first * pairs.step, pairs.sees.data() + first * pairs.step, pairs.step, 1},
        count, head.keys(), sums.data());
    for (std::int64_t n = 0; n < count; ++n) {
      const WideQuery& at = rows[unsign(first + n)];
      for (std::int64_t d = 0; is_left(at) && d < p_.dim; ++d)
        write_element(*g_.q, {at.b, at.h, sequence(at.b).first_query + at.i, d},
                      scale * sums[unsign(n * width + d)]);
    }
  });
}

void GradientCompletion::write_keys(const Marks& marks, const MutableView& to,
                                    const std::vector<double>& sums, double factor, std::int64_t b,
                                    std::int64_t kv_head) const {
  const std::int64_t keys = sequence(b).keys, width = std::ssize(sums) / keys;
  for (std::int64_t j = 0; j < keys; ++j)
    for (std::int64_t d = 0; any(marks, first_key(b, kv_head) + j, 1) && d < to.shape.dim; ++d)
      write_element(to, {b, kv_head, sequence(b).first_key + j, d}, factor * sums[unsign(j * width + d)]);
}

// Elements that batch entries, heads, queries and keys may share are sums in their order.
void GradientCompletion::complete_shared() const {
  SumTensor bias(any(left_.bias) ? g_.given.bias->shape : Shape{}),
      sink(any(left_.sink) ? g_.given.sink->shape : Shape{});
  for (std::int64_t b = 0; b < p_.batch; ++b)
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      const std::vector<WideQuery> rows = rows_of(b, h);
      const GradientHead head(g_, scores_, b, p_.kv_head(h));
      const auto at_once = unsign(head.rows_at_once());
      for (std::size_t n = 0; n < rows.size(); n += at_once) {
        const auto some = std::span(rows).subspan(n, std::min(at_once, rows.size() - n));
        const RowPairs pairs = head.pairs(some, By::score);
        for (std::int64_t m = 0; m < std::ssize(some); ++m) {
          if (any(left_.sink)) sink.at(b, h, 0, 0).value += pairs.sink[unsign(m)];
          const std::int64_t query = sequence(b).first_query + some[unsign(m)].i;
          for (std::int64_t j = 0; any(left_.bias) && j < sequence(b).keys; ++j)
            bias.at(b, h, query, j).value += pairs.gradient[unsign(m * pairs.step + j)];
        }
      }
    }
  if (any(left_.bias)) write_elements(left_.bias, *g_.given.bias, bias);
  if (any(left_.sink)) write_elements(left_.sink, *g_.given.sink, sink);
}

void GradientCompletion::write_elements(const Marks& marks, const MutableView& to, SumTensor& from) const {
  std::size_t n = 0;
  for (std::int64_t b = 0; b < to.shape.batch; ++b)
    for (std::int64_t h = 0; h < to.shape.heads; ++h)
      for (std::int64_t i = 0; i < to.shape.length; ++i)
        for (std::int64_t d = 0; d < to.shape.dim; ++d)
          if (marks[n++] != 0) write_element(to, {b, h, i, d}, from.at(b, h, i, d).value);
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
