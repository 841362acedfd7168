// SPDX-License-Identifier: Apache-2.0
#include "api/complete_rows.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "api/wide_rows.hpp"
#include "api/wide_scores.hpp"
#include "threads/pool.hpp"

namespace heed::api {
namespace {

using reference::Row, reference::UnfinishedRow;
using Rows = std::span<const UnfinishedRow>;

// What the sum of a row's weights is made of.
struct Logits {
  double max;
  bool has_nan = false;

  Logits(double sink, std::span<const double> scores) : max(sink), has_nan(std::isnan(sink)) {
    constexpr std::size_t lanes = 4;  // each waits for itself alone
    double highest[lanes] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const auto take = [&](std::size_t lane, double x) {
      highest[lane] = x > highest[lane] ? x : highest[lane];
      has_nan |= x != x;
    };
    std::size_t j = 0;
    for (; j + lanes <= scores.size(); j += lanes)
      for (std::size_t lane = 0; lane < lanes; ++lane) take(lane, scores[j + lane]);
    for (; j < scores.size(); ++j) take(0, scores[j]);
    for (const double x : highest) max = std::max(max, x);
  }

  bool have_sum() const { return !has_nan && max < INFINITY; }  // else it is NaN
};

// Some rows against all keys of their KV head.
struct Panel {
  Panel(std::int64_t count, std::int64_t row_step, const KeyRange& seen, bool any_wild)
      : step(row_step),
        keys(seen),
        weights(std::make_unique_for_overwrite<double[]>(static_cast<std::size_t>(count * step))),
        sees(static_cast<std::size_t>(any_wild ? count * step : 0)),
        rows(static_cast<std::size_t>(count)) {}

  std::int64_t step;  // from one row's to the next
  KeyRange keys;      // of which nothing else counts
  // First of the undecided rows, one after another.
  std::unique_ptr<double[]> weights;
  std::vector<unsigned char> sees;  // where a value is wild
  std::vector<std::int64_t> undecided{};
  std::int64_t some = 0;  // weights of undecided rows that are not 0
  std::vector<Row> rows;
};

class RowCompletion {
 public:
  RowCompletion(const Problem& problem, std::vector<UnfinishedRow> unfinished)
      : p_(problem), scores_(problem), rows_(std::move(unfinished)) {
    std::ranges::stable_sort(rows_, {}, [this](const UnfinishedRow& row) { return head_of(row); });
  }

  // Heads one after another, which share their threads, or as many at once as there are threads.
  void run() const {
    const std::vector<Rows> heads = rows_of_heads();
    if (heads.size() >= 4 * threads::concurrency())
      threads::throwing_parallel_for(heads.size(), [&](std::size_t n) { complete_head(heads[n]); });
    else
      for (const Rows& rows : heads) complete_head(rows);
  }

 private:
  std::int64_t head_of(const UnfinishedRow& row) const { return row.b * p_.kv_heads + p_.kv_head(row.h); }

  // Rows of one KV head each.
  std::vector<Rows> rows_of_heads() const {
    std::vector<Rows> heads;
    for (auto first = rows_.begin(); first != rows_.end();) {
      const auto end = std::find_if(
          first, rows_.end(), [&](const UnfinishedRow& row) { return head_of(row) != head_of(*first); });
      heads.push_back(Rows(&*first, static_cast<std::size_t>(end - first)));
      first = end;
    }
    return heads;
  }

  void complete_head(Rows) const;
  void complete_panel(const WideColumns& keys, const WideRows& values, Rows) const;
  void add_values(const WideRows& values, Panel&) const;
  void weigh(const WideQuery&, Panel&, std::int64_t n) const;
  void finish(const WideQuery&, const KeyRange&, double* products, Row&) const;
  double weigh_seen(const WideQuery&, const Logits&, double sink, std::int64_t first_key,
                    std::span<double> scores, std::int64_t& some) const;
  bool is_nan_throughout(const WideQuery&, const KeyRange&, const double* scores) const;

  void become_nan(Row& row) const {
    row.out.assign(static_cast<std::size_t>(p_.value_dim), NAN);
    row.log_sum_exp = NAN;
  }
  bool wants_pairs() const { return p_.outputs.weights || p_.outputs.scores.into; }
  bool drops(const WideQuery& at, std::int64_t j) const {
    return p_.options.dropout && reference::dropped(p_, at.b, at.h, at.i, j);
  }
  const Sequence& sequence(std::int64_t b) const { return p_.sequences[static_cast<std::size_t>(b)]; }

  const Problem& p_;
  const WideScores scores_;
  std::vector<UnfinishedRow> rows_;
};

void RowCompletion::complete_head(Rows rows) const {
  const std::int64_t b = rows.front().b, kv_head = p_.kv_head(rows.front().h);
  const Sequence& s = sequence(b);
  const WideColumns keys(p_.inputs.k, b, kv_head, s.first_key, s.keys);
  const WideRows values = wide_rows(p_.inputs.v, b, kv_head, s.first_key, s.keys);
  // Of the products 16 MiB, but at least a row.
  constexpr std::int64_t max_products = std::int64_t{1} << 21, max_rows = 24;
  const auto each = std::clamp<std::int64_t>(max_products / (keys.step() + 1), 1, max_rows);
  for_each_stretch(std::ssize(rows), each, [&](std::int64_t first, std::int64_t count) {
    complete_panel(keys, values,
                   rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  });
}

void RowCompletion::complete_panel(const WideColumns& keys, const WideRows& values, Rows rows) const {
  const std::int64_t count = std::ssize(rows), step = keys.step();
  WideRows queries(count, p_.dim);
  for (std::int64_t n = 0; n < count; ++n) {
    const auto& [b, h, i, only_out] = rows[static_cast<std::size_t>(n)];
    queries.read(n, p_.inputs.q, b, h, sequence(b).first_query + i);
  }
  // Weights and scores that are asked for are those of all keys.
  const KeyRange seen = wants_pairs() ? KeyRange{0, values.count()} : scores_.keys_of(rows);
  Panel panel(count, step, seen, values.any_wild());
  keys.multiply(queries, 0, count, seen, panel.weights.get());
  for (std::int64_t n = 0; n < count; ++n) {
    const auto& [b, h, i, only_out] = rows[static_cast<std::size_t>(n)];
    weigh({b, h, i}, panel, n);
  }
  add_values(values, panel);
  for (std::size_t n = 0; n < rows.size(); ++n) reference::complete(p_, rows[n], panel.rows[n]);
}

void RowCompletion::add_values(const WideRows& values, Panel& panel) const {
  const std::int64_t count = std::ssize(panel.undecided);
  std::vector<double> out(static_cast<std::size_t>(count * values.width()));
  const bool are_few = panel.some < count * (panel.keys.end - panel.keys.begin) / 4;
  add_weighted(
      {panel.weights.get(), panel.sees.empty() ? nullptr : panel.sees.data(), panel.step, 1, are_few}, count,
      values, panel.keys, out.data());
  const double* from = out.data();
  for (const std::int64_t n : panel.undecided) {
    panel.rows[static_cast<std::size_t>(n)].out.assign(from, from + p_.value_dim);
    from += values.width();
  }
}

// Row n, but for its output where that is a sum of values: then products become the weights of these.
// The steps are those of reference::row.
void RowCompletion::weigh(const WideQuery& at, Panel& panel, std::int64_t n) const {
  double* const products = panel.weights.get() + n * panel.step;
  Row& row = panel.rows[static_cast<std::size_t>(n)];
  if (!wants_pairs() && !p_.options.dropout && scores_.are_known_to_have_no_sum(at, products)) {
    become_nan(row);
    return;
  }
  finish(at, panel.keys, products, row);
  const std::span<double> x(products + panel.keys.begin, products + panel.keys.end);
  const double sink = p_.sink ? reference::read(*p_.sink, at.b, at.h, 0, 0) : -INFINITY;
  const Logits logits(sink, x);
  const bool sees_any = std::ranges::any_of(x, [](double score) { return score != -INFINITY; });
  if (sees_any && !logits.have_sum() && is_nan_throughout(at, panel.keys, products)) {
    become_nan(row);
    return;
  }
  const std::int64_t place = std::ssize(panel.undecided) * panel.step;
  panel.undecided.push_back(n);
  if (!panel.sees.empty())
    std::ranges::transform(x, panel.sees.begin() + place + panel.keys.begin,
                           [](double score) -> unsigned char { return score != -INFINITY; });
  row.log_sum_exp = sees_any ? weigh_seen(at, logits, sink, panel.keys.begin, x, panel.some) : sink;  // S12
  if (!sees_any) std::ranges::fill(x, 0.0);                                                           // S6
  if (p_.outputs.weights) {
    row.weight.assign(static_cast<std::size_t>(p_.keys), 0.0);
    std::ranges::copy(x, row.weight.begin());
  }
  if (panel.weights.get() + place != products)
    std::ranges::copy(x, panel.weights.get() + place + panel.keys.begin);
}

// Products become scores, those that are asked for too.
void RowCompletion::finish(const WideQuery& at, const KeyRange& seen, double* products, Row& row) const {
  if (!p_.outputs.scores.into) return scores_.finish(at, seen, products);
  const auto keys = static_cast<std::size_t>(p_.keys);
  row.raw.assign(keys, 0.0), row.softcapped.assign(keys, 0.0), row.biased.assign(keys, -INFINITY);
  for (std::int64_t j = 0; j < sequence(at.b).keys; ++j) {
    const reference::KeyScore found = scores_.score(at, products[j], j);
    const auto n = static_cast<std::size_t>(j);
    row.raw[n] = found.raw, row.softcapped[n] = found.softcapped, row.biased[n] = found.biased;
    products[j] = found.biased;
  }
}

// Of a row whose sum is NaN: whether a value is multiplied with it, and nothing else is asked for.
bool RowCompletion::is_nan_throughout(const WideQuery& at, const KeyRange& seen, const double* scores) const {
  if (wants_pairs()) return false;
  for (std::int64_t j = seen.begin; j < seen.end; ++j)
    if (scores[j] != -INFINITY && !drops(at, j)) return true;
  return false;
}

// Scores of which some are seen become weights after dropout; those that are not 0 are counted. Returns the
// log-sum-exp.
double RowCompletion::weigh_seen(const WideQuery& at, const Logits& logits, double sink,
                                 std::int64_t first_key, std::span<double> x, std::int64_t& some) const {
  double sum = sink == -INFINITY ? 0 : std::exp(sink - logits.max);  // S5
  if (!logits.have_sum()) {
    sum = NAN;
    for (double& score : x) score = score == -INFINITY ? 0 : NAN;
  } else {
    for (double& score : x)
      if (score < logits.max + no_weight)
        score = 0;
      else
        sum += score = std::exp(score - logits.max);
  }
  const double kept = p_.options.dropout ? 1.0 - p_.options.dropout->drop_probability : 1;
  for (std::int64_t j = 0; j < std::ssize(x); ++j)
    if (double& weight = x[static_cast<std::size_t>(j)]; weight != 0) {
      weight = drops(at, first_key + j) ? 0 : weight / sum / kept;  // S7
      ++some;
    }
  return logits.max + std::log(sum);
}

}  // namespace

void complete_rows(const Problem& problem, std::vector<UnfinishedRow> unfinished) {
  RowCompletion(problem, std::move(unfinished)).run();
}

}  // namespace heed::api
