// SPDX-License-Identifier: Apache-2.0
// The rows that a kernel could not finish in f32 (S13). They are found by what it wrote: NaN or an infinity.
#include <algorithm>
#include <cmath>
#include <functional>

#include "reference/row.hpp"

namespace heed::reference {
namespace {

// Of one row's results in one output: (b, h, row, 0 ... count - 1).
struct Results {
  MutableView view;
  std::int64_t b, h, row, count;
  const std::vector<double> Row::* expected;
  bool may_be_hidden;  // -inf is what such a result is where a key is not seen

  bool is_left(std::int64_t n) const {
    const double x = read(view, b, h, row, n);
    return !std::isfinite(x) && !(may_be_hidden && x == -INFINITY);
  }
  bool any_left() const {
    for (std::int64_t n = 0; n < count; ++n)
      if (is_left(n)) return true;
    return false;
  }
  void replace(const Row& by) const {
    for (std::int64_t n = 0; n < count; ++n)
      if (is_left(n)) write(view, b, h, row, n, (by.*expected)[static_cast<std::size_t>(n)]);
  }
};

std::vector<Results> results_of(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t row) {
  const Outputs& to = p.outputs;
  std::vector<Results> all{{to.out, b, h, row, p.value_dim, &Row::out, false}};
  if (to.weights) all.push_back({*to.weights, b, h, row, p.keys, &Row::weight, false});
  if (!to.scores.into) return all;
  const Stage stage = to.scores.stage;
  all.push_back({*to.scores.into, b, h, row, p.keys,
                 stage == Stage::raw          ? &Row::raw
                 : stage == Stage::softcapped ? &Row::softcapped
                                              : &Row::biased,
                 stage == Stage::biased});
  return all;
}

// NaN in a query is NaN in every score of the row, and so wherever the kernel has written it.
bool query_holds_nan(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t row) {
  for (std::int64_t d = 0; d < p.dim; ++d)
    if (std::isnan(read(p.inputs.q, b, h, row, d))) return true;
  return false;
}

bool lse_is_left(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t row) {
  const std::optional<MutableView>& lse = p.outputs.log_sum_exp;
  return lse && std::isnan(read(*lse, b, h, row, 0));
}

}  // namespace

std::vector<UnfinishedRow> unfinished_rows(const Problem& p) {
  std::vector<UnfinishedRow> rows;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
      for (std::int64_t i = p.first_query_here(); i < p.end_query_here(s); ++i) {
        const std::int64_t row = s.first_query + i;
        const std::vector<Results> all = results_of(p, b, h, row);
        const bool beside_out = lse_is_left(p, b, h, row) ||
                                std::any_of(all.begin() + 1, all.end(), std::mem_fn(&Results::any_left));
        if (!beside_out && !all.front().any_left()) continue;
        if (p.options.dropout || !query_holds_nan(p, b, h, row)) rows.push_back({b, h, i, !beside_out});
      }
    }
  return rows;
}

void complete(const Problem& p, const Numbers& numbers, const UnfinishedRow& at) {
  const Row expected = row(p, numbers, at.b, at.h, at.i);
  const std::int64_t to = p.sequences[static_cast<std::size_t>(at.b)].first_query + at.i;
  if (lse_is_left(p, at.b, at.h, to)) write(*p.outputs.log_sum_exp, at.b, at.h, to, 0, expected.log_sum_exp);
  for (const Results& results : results_of(p, at.b, at.h, to)) results.replace(expected);
}

}  // namespace heed::reference
