// SPDX-License-Identifier: Apache-2.0
// Gradients against the reference, every query once, on all threads.
#include "heed/gradient.hpp"

#include <vector>

#include "check/compare.hpp"
#include "heed/check.hpp"
#include "lowering/make_problem.hpp"
#include "reference/gradient.hpp"
#include "reference/gradient_bound.hpp"
#include "refusal/refusal.hpp"
#include "threads/throwing.hpp"

namespace heed::inline v0_2 {
namespace {

struct Entry {
  std::int64_t b, kv_head;
};

// Queries of heads that share a KV head add to the same sums, so they are one thread's.
void add_entry(const GradientProblem& g, const reference::GradientNumbers& numbers, const Entry& at,
               reference::GradientSums& sums) {
  const Problem& p = g.forward;
  for (std::int64_t h = 0; h < p.heads; ++h) {
    if (p.kv_head(h) != at.kv_head) continue;
    for (std::int64_t i = 0; i < p.sequences[static_cast<std::size_t>(at.b)].queries; ++i) {
      reference::GradientRow row = reference::gradient_row(g, numbers, at.b, h, i);
      reference::add_errors(g, numbers, at.b, h, i, row);
      reference::add(g, numbers, row, at.b, h, i, sums);
    }
  }
}

// Where a bias or a sink is shared by heads or batch entries, all are one thread's.
bool shares_sums(const GradientProblem& g) { return g.bias || g.sink; }

reference::GradientSums expected_of(const GradientProblem& g) {
  const Problem& p = g.forward;
  const reference::GradientNumbers numbers(g);
  reference::GradientSums sums(g);
  std::vector<Entry> entries;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.kv_heads; ++h) entries.push_back({b, h});
  const auto one = [&](std::size_t n) { add_entry(g, numbers, entries[n], sums); };
  if (shares_sums(g))
    for (std::size_t n = 0; n < entries.size(); ++n) one(n);
  else
    threads::throwing_parallel_for(entries.size(), one);
  return sums;
}

struct Computed {
  const char* name;
  const std::optional<MutableView>& view;
  std::optional<reference::SumTensor>& expected;
  double roundings;  // of its sums
  double factor;
};

void compare(const Computed& c, Check& check) {
  if (!c.view) return;
  const Shape& s = c.view->shape;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.length; ++i)
        for (std::int64_t d = 0; d < s.dim; ++d) {
          const reference::Sum& sum = c.expected->at(b, h, i, d);
          checking::compare(
              {c.name, {b, h, i, d}, c.view->dtype}, reference::read(*c.view, b, h, i, d),
              {c.factor * sum.value, reference::bound_of(sum, c.roundings, c.factor, c.view->dtype)}, check);
        }
}

// How many of (batch, heads, queries, keys) share an element: their sum is one chain.
double sharing(const std::optional<MutableView>& x, const Shape& all) {
  if (!x) return 0;
  const auto along = [](std::int64_t own, std::int64_t whole) {
    return own == 1 ? static_cast<double>(whole) : 1.0;
  };
  return along(x->shape.batch, all.batch) * along(x->shape.heads, all.heads) *
         along(x->shape.length, all.length) * along(x->shape.dim, all.dim);
}

}  // namespace

Check check(const Inputs& inputs, const Saved& saved, const Gradients& computed, const Options& options) {
  if (computed.accumulate)
    throw refusal(Error::unsupported,
                  "gradients.accumulate: what was there before cannot be told from what was added");
  const GradientProblem g = make_gradient_problem(inputs, saved, computed, options);
  const Problem& p = g.forward;
  const threads::ForOneCall said(options.threads, options.executor);
  reference::GradientSums expected = expected_of(g);
  const std::int64_t rows = p.kv_heads == 0 ? 0 : p.heads / p.kv_heads * p.queries;
  const Shape all{p.batch, p.heads, p.queries, p.keys};
  const double scale = reference::scale_of(p);
  Check result;
  using reference::roundings_of;
  compare({"gradients.q", computed.q, expected.q, roundings_of(g, p.keys), scale}, result);
  compare({"gradients.k", computed.k, expected.k, roundings_of(g, rows), scale}, result);
  compare({"gradients.v", computed.v, expected.v, roundings_of(g, rows), 1}, result);
  compare({"gradients.bias", computed.bias, expected.bias, sharing(computed.bias, all), 1}, result);
  compare({"gradients.sink", computed.sink, expected.sink,
           sharing(computed.sink, {p.batch, p.heads, p.queries, 1}), 1},
          result);
  return result;
}

}  // namespace heed::inline v0_2
