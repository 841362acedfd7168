// SPDX-License-Identifier: Apache-2.0
// The rows that a kernel could not finish in f32 (S13). They are found by what it wrote: NaN or an infinity.
#include <cmath>

#include "reference/row.hpp"

namespace heed::reference {
namespace {

// Of one row's results in one output: (b, h, row, 0 ... count - 1).
struct Results {
  MutableView view;
  std::int64_t b, h, row, count;
  const std::vector<double> Row::*expected;
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

void complete(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t i) {
  const std::int64_t at = p.sequences[static_cast<std::size_t>(b)].first_query + i;
  const std::vector<Results> results = results_of(p, b, h, at);
  const std::optional<MutableView>& lse = p.outputs.log_sum_exp;
  const bool lse_left = lse && std::isnan(read(*lse, b, h, at, 0));
  bool any_left = lse_left;
  for (const Results& some : results) any_left = any_left || some.any_left();
  if (!any_left || (!p.options.dropout && query_holds_nan(p, b, h, at))) return;
  const Row expected = row(p, b, h, i);
  for (const Results& some : results) some.replace(expected);
  if (lse_left) write(*lse, b, h, at, 0, expected.log_sum_exp);
}

}  // namespace

void complete(const Problem& p) {
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.sequences[static_cast<std::size_t>(b)].queries; ++i) complete(p, b, h, i);
}

}  // namespace heed::reference
