// SPDX-License-Identifier: Apache-2.0
// Repair (S13): rows that a kernel could not finish, once more in f64. All scores of a panel are made first;
// then each row has its maximum, its sum and its weights, in the order of keys, and the values are added. No
// step differs from the reference's, nor does a bit.
#pragma once
#include <cstdint>

#include "cpu/f64/attend.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

inline bool are_numbers(const double* x, std::int64_t count) {
  bool any_is_not = false;
  for (std::int64_t n = 0; n < count; ++n) any_is_not |= !(__builtin_fabs(x[n]) < __builtin_inf());
  return !any_is_not;
}

// Calls body(first, count, are numbers) for runs of terms that all are numbers, or that all are not.
template <class Body>
inline void for_each_run(const double* terms, std::int64_t count, std::int64_t width, const Body& body) {
  for (std::int64_t m = 0, first = 0; m < count; first = m) {
    const bool is_run = are_numbers(terms + m++ * width, width);
    while (m < count && are_numbers(terms + m * width, width) == is_run) ++m;
    body(first, m - first, is_run);
  }
}

// c(d, row) += sum over keys of a(key, row) * b(key, d), for the rows that a key is shown to: rows of some
// vectors.
template <class D, int vectors>
inline void add_shown(const F64Product& p, const double* shown) {
  for (std::int64_t d = 0; d < p.columns; ++d) {
    typename D::F sum[vectors];
    double* const c = p.c + d * p.width;
    for (int v = 0; v < vectors; ++v) sum[v] = D::load(c + v * D::lanes);
    for (std::int64_t m = 0; m < p.terms; ++m) {
      const auto b = D::fill(p.b.data[d * p.b.column + m * p.b.term]);
      for (int v = 0; v < vectors; ++v) {
        const std::int64_t at = m * p.width + v * D::lanes;
        const auto more = D::add_product(D::load(p.a + at), b, sum[v]);
        // fault: repair-shows-hidden-values
        sum[v] = D::load(shown + at) == typename D::F{} ? sum[v] : more;
      }
    }
    for (int v = 0; v < vectors; ++v) D::store(c + v * D::lanes, sum[v]);
  }
}

// c(d, row) += sum over keys of a(key, row) * b(key, d), rows in lanes. What is not finite reaches the rows
// that it is shown to, and no others: 0 * inf is NaN (S4, G6).
template <class D>
inline void add_keys(const double* a, const double* shown, std::int64_t width, const double* b,
                     std::int64_t dim, std::int64_t keys, double* c) {
  for_each_run(b, keys, dim, [&](std::int64_t m, std::int64_t count, bool is_run) {
    F64Product p{a + m * width, width, {b + m * dim, 1, dim}, dim, count, c};
    if (is_run) return multiply<D>(p, Sums::go_on);
    const double* const of_run = shown + m * width;
    std::int64_t w = 0;
    for (; w + 4 * D::lanes <= width; w += 4 * D::lanes, p.a += 4 * D::lanes, p.c += 4 * D::lanes)
      add_shown<D, 4>(p, of_run + w);
    for (; w < width; w += D::lanes, p.a += D::lanes, p.c += D::lanes) add_shown<D, 1>(p, of_run + w);
  });
}

// Calls body(first, count) for runs of pairs that there are.
template <class Body>
inline void for_each_shown(const double* shown, std::int64_t count, const Body& body) {
  for (std::int64_t m = 0, first = 0; m < count; first = m) {
    const bool is_run = shown[m++] != 0;
    while (m < count && (shown[m] != 0) == is_run) ++m;
    if (is_run) body(first, m - first);  // fault: repair-shows-hidden-rows
  }
}

// c(key, dim) += sum over rows of a(key, row) * b(row, dim), where every row has `dim` numbers, in whole
// vectors. Likewise.
template <class D>
inline void add_rows(const double* a, const double* shown, std::int64_t width, const double* b,
                     std::int64_t dim, std::int64_t rows, std::int64_t keys, double* c) {
  for_each_run(b, rows, dim, [&](std::int64_t m, std::int64_t count, bool is_run) {
    if (is_run) return multiply<D>({b + m * dim, dim, {a + m, width, 1}, keys, count, c}, Sums::go_on);
    for (std::int64_t n = 0; n < keys; ++n)
      for_each_shown(shown + n * width + m, count, [&](std::int64_t first, std::int64_t some) {
        const std::int64_t row = m + first;
        multiply<D>({b + row * dim, dim, {a + n * width + row, width, 1}, 1, some, c + n * dim}, Sums::go_on);
      });
  });
}

// Of one row: results of one kind, of which some may need repair.
struct F64Results {
  const Tensor& to;
  std::int64_t first, count;  // elements of a row, a stride apart
  bool may_be_hidden = false;

  std::int64_t element(std::int64_t n) const { return first + n * to.stride.dim; }
  bool needs_repair(std::int64_t n) const {
    return HEED_THIS_TARGET::needs_repair(f64_read(to, element(n)), may_be_hidden);
  }
  bool any() const {
    for (std::int64_t n = 0; to.data && n < count; ++n)
      if (needs_repair(n)) return true;
    return false;
  }
};

inline F64Results results(const Call& c, const Tensor& t, std::int64_t b, const F64Row& row,
                          std::int64_t count) {
  const std::int64_t query = c.sequences[b].first_query + row.query;
  return {t, f64_element(t, b, row.head, query, 0), count};
}

inline bool row_needs_repair(const Call& c, std::int64_t b, const F64Row& row) {
  F64Results scores = results(c, c.scores, b, row, c.keys);
  scores.may_be_hidden = c.stage == ScoreStage::biased;
  const F64Results lse = results(c, c.log_sum_exp, b, row, 1);
  return results(c, c.out, b, row, c.value_dim).any() || scores.any() ||
         results(c, c.weights, b, row, c.keys).any() ||
         (lse.to.data && __builtin_isnan(f64_read(lse.to, lse.first)));
}

template <class D>
class F64RepairRows {
 public:
  // Of panels of up to so many rows that see up to so many keys.
  static std::int64_t doubles(const Call& c, std::int64_t most_rows, std::int64_t keys) {
    const std::int64_t whole = round_up(keys, f64_block_keys) + 3 * f64_block_keys;
    return F64Scores<D>::doubles(c) + f64_block_keys * max(c.dim, c.value_dim) +
           (f64_block_keys + c.value_dim + 2) * f64_panel_rows + whole * round_up(most_rows, D::lanes);
  }

  F64RepairRows(const Call& call, const F64Panel& at, double* memory)
      : c(call),
        rows(call, at, memory),
        operands(memory + F64Scores<D>::doubles(call)),
        shown(operands + f64_block_keys * max(call.dim, call.value_dim)),
        out(shown + f64_block_keys * f64_panel_rows),
        max_of(out + call.value_dim * f64_panel_rows),
        sum_of(max_of + f64_panel_rows),
        p(sum_of + f64_panel_rows) {}

  void run() const {
    for_each_block([&](const F64Keys& keys, double* scores) {
      rows.compute(keys, rows.k_of(keys, operands), Writing::scores, scores);
    });
    for (std::int64_t r = 0; r < rows.panel.queries; ++r) sum_up(r);
    for (std::int64_t n = 0; n < c.value_dim * rows.width; ++n) out[n] = 0;
    for_each_block([&](const F64Keys& keys, double* weights) {
      weigh(keys, weights);
      rows.v_of(keys, operands);
      add_keys<D>(weights, shown, rows.width, operands, c.value_dim, keys.count, out);
    });
    for (std::int64_t r = 0; r < rows.panel.queries; ++r) write(r);
  }

 private:
  // body(keys, what is kept of them: (key, row)) of the blocks of which something counts.
  template <class Body>
  void for_each_block(const Body& body) const {
    const bool writes_scores = c.stage != ScoreStage::none;
    const std::int64_t end = writes_scores ? rows.s.keys : rows.end;
    double* kept = p;
    for (std::int64_t first = 0; first < end; first += f64_block_keys) {
      if (!writes_scores && first >= c.front)
        first = max(first, rows.begin / f64_block_keys * f64_block_keys);
      if (first >= end) return;
      body(F64Keys{first, min(f64_block_keys, end - first)}, kept);
      kept += f64_block_keys * rows.width;
    }
  }

  double sink(std::int64_t r) const {
    if (!c.sink.data) return f64_minus_infinity;
    return f64_read(c.sink, f64_element(c.sink, rows.panel.batch_entry, rows.panel.row(r).head, 0, 0));
  }

  // Scores of a row that are not -inf become e^(score - max).
  void sum_up(std::int64_t r) const {
    double most = sink(r);
    bool sees_any = false;
    const auto for_each_seen = [&](const auto& body) {
      for_each_block([&](const F64Keys& keys, double* scores) {
        for (std::int64_t n = 0; n < keys.count; ++n)
          if (double& score = scores[n * rows.width + r]; score != f64_minus_infinity) body(score);
      });
    };
    for_each_seen([&](double score) {
      sees_any = true;
      most = most < score ? score : most;
    });
    double sum = sees_any && sink(r) != f64_minus_infinity ? __builtin_exp(sink(r) - most) : 0;  // S5
    for_each_seen([&](double& score) { sum += score = __builtin_exp(score - most); });
    max_of[r] = most, sum_of[r] = sees_any ? sum : 1;  // S6: the log-sum-exp is the sink
  }

  void weigh(const F64Keys& keys, double* weights) const {
    const double kept = 1.0 - c.drop_probability;
    for (std::int64_t n = 0; n < keys.count; ++n)
      for (std::int64_t r = 0; r < rows.width; ++r) {
        double& x = weights[n * rows.width + r];
        const std::int64_t j = keys.first + n;
        const bool sees = r < rows.panel.queries && x != f64_minus_infinity;
        shown[n * rows.width + r] = sees ? 1 : 0;
        const bool is_dropped = sees && c.drop_probability > 0 && !rows.keeps(r, j);  // S7
        x = sees && !is_dropped ? x / sum_of[r] / kept : 0;
        if (!c.weights.data || r >= rows.panel.queries) continue;
        const std::int64_t e = rows.place(c.weights, r, j);
        if (needs_repair(f64_read(c.weights, e), false)) f64_write(c.weights, e, x);
      }
  }

  void write(std::int64_t r) const {
    const F64Results to = results(c, c.out, rows.panel.batch_entry, rows.panel.row(r), c.value_dim);
    for (std::int64_t d = 0; d < c.value_dim; ++d)
      if (to.needs_repair(d)) f64_write(c.out, to.element(d), out[d * rows.width + r]);
    if (!c.log_sum_exp.data) return;
    const std::int64_t e = rows.place(c.log_sum_exp, r, 0);
    if (__builtin_isnan(f64_read(c.log_sum_exp, e)))
      f64_write(c.log_sum_exp, e, max_of[r] + __builtin_log(sum_of[r]));
  }

  const Call& c;
  const F64Scores<D> rows;
  double *const operands, *const shown, *const out, *const max_of, *const sum_of, *const p;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
