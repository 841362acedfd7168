// SPDX-License-Identifier: Apache-2.0
// Every row of the reference once, on all threads, and results against it.
#include "heed/check.hpp"

#include <algorithm>
#include <optional>

#include "check/compare.hpp"
#include "check/on_host.hpp"
#include "lowering/make_problem.hpp"
#include "plan/backends.hpp"
#include "reference/bound.hpp"
#include "reference/numbers.hpp"
#include "reference/row.hpp"
#include "refusal/argument.hpp"
#include "refusal/refusal.hpp"
#include "threads/throwing.hpp"

namespace heed::inline v0_2 {
namespace {

// One row of the reference, and the row of the results that it is: another where sequences are packed.
struct Query {
  std::int64_t b, h, i, result_row;
};

std::vector<Query> queries_of(const Problem& p) {
  const Shape& results = p.inputs.q.shape;
  std::vector<Query> queries;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
      const std::int64_t head = (results.batch == 1 ? 0 : b) * p.heads + h;
      for (std::int64_t i = 0; i < s.queries; ++i)
        queries.push_back({b, h, i, head * results.length + s.first_query + i});
    }
  return queries;
}

// body(n) for every n below `rows`, on all threads.
template <class Body>
void for_each_row(std::int64_t rows, const Progress& progress, const Body& body) {
  const std::int64_t enough_for_all = 4 * static_cast<std::int64_t>(threads::concurrency());
  const std::int64_t at_once = progress ? std::max(rows / 100, enough_for_all) : rows;
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const std::int64_t count = std::min(at_once, rows - first);
    threads::throwing_parallel_for(static_cast<std::size_t>(count),
                                   [&](std::size_t n) { body(static_cast<std::size_t>(first) + n); });
    if (progress) progress(first + count, rows);
  }
}

}  // namespace

struct Expected::Numbers {
  using Element = checking::ExpectedElement;

  struct Output {
    const char* name;
    Shape shape;
    DType dtype;
    std::vector<Element> elements;  // row after row

    Output(const char* n, const View& x)
        : name(n), shape(x.shape), dtype(x.dtype), elements(static_cast<std::size_t>(x.shape.elements())) {}

    Element* row(std::int64_t n) { return elements.data() + n * shape.dim; }

    void fits(const std::optional<View>& computed) const {
      if (!computed) throw refusal(Error::shape, name, ": not given, but expected");
      planning::backend_of(name, computed->device);
      check_argument({name, *computed});
      if (computed->shape != shape)
        throw refusal(Error::shape, name, ".shape: ", computed->shape, " is not the one expected: ", shape);
      if (computed->dtype != dtype)
        throw refusal(Error::dtype, name, ".dtype: ", name_of(computed->dtype),
                      " is not the one expected: ", name_of(dtype));
    }

    void compare(const View& computed, const std::vector<std::int64_t>& of_queries, Check& check) const {
      const checking::ViewOnHost found(name, computed);
      for (const std::int64_t row : of_queries) {
        const std::int64_t i = row % shape.length, head = row / shape.length;
        const std::int64_t h = head % shape.heads, b = head / shape.heads;
        const Element* expected = elements.data() + row * shape.dim;
        for (std::int64_t d = 0; d < shape.dim; ++d)
          checking::compare({name, {b, h, i, d}, dtype}, reference::read(found.view(), b, h, i, d),
                            expected[d], check);
      }
    }
  };

  std::vector<std::int64_t> rows;  // of the results that are a query's: the others are padding
  Output out;
  std::optional<Output> weights{}, log_sum_exp{};

  Numbers(const Results& results, const std::vector<Query>& queries) : out("out", results.out) {
    for (const Query& query : queries) rows.push_back(query.result_row);
    if (results.weights) weights.emplace("weights", *results.weights);
    if (results.log_sum_exp) log_sum_exp.emplace("log_sum_exp", *results.log_sum_exp);
  }

  void compute(const Problem& p, const reference::Numbers& numbers, const Query& at) {
    const reference::Row row = reference::row(p, numbers, at.b, at.h, at.i);
    const reference::RowBound bound(p, numbers, row, at.b, at.h, at.i);
    Element* to = out.row(at.result_row);
    for (std::int64_t d = 0; d < p.value_dim; ++d)
      to[d] = {row.out[static_cast<std::size_t>(d)], bound.out(d)};
    for (std::int64_t j = 0; weights && j < p.keys; ++j)
      weights->row(at.result_row)[j] = {row.weight[static_cast<std::size_t>(j)], bound.weight(j)};
    if (log_sum_exp) *log_sum_exp->row(at.result_row) = {row.log_sum_exp, bound.log_sum_exp()};
  }
};

Expected::Expected(const Inputs& inputs, const Results& results, const Options& options,
                   const Progress& progress) {
  planning::backend_of("q", inputs.q.device);
  const checking::ProblemOnHost held(make_problem_of(inputs, results, options));
  const Problem& p = held.problem();
  const threads::ForOneCall said(options.threads, options.executor);
  const reference::Numbers numbers(p);
  const std::vector<Query> queries = queries_of(p);
  const auto made = std::make_shared<Numbers>(results, queries);
  for_each_row(std::ssize(queries), progress, [&](std::size_t n) { made->compute(p, numbers, queries[n]); });
  numbers_ = made;
}

Check Expected::check(const Results& computed) const {
  const auto& [rows, out, weights, log_sum_exp] = *numbers_;
  out.fits(computed.out);
  if (weights) weights->fits(computed.weights);
  if (log_sum_exp) log_sum_exp->fits(computed.log_sum_exp);
  if (computed.weights && !weights) throw refusal(Error::shape, "weights: given, but not expected");
  if (computed.log_sum_exp && !log_sum_exp)
    throw refusal(Error::shape, "log_sum_exp: given, but not expected");
  Check result;
  out.compare(computed.out, rows, result);
  if (weights) weights->compare(*computed.weights, rows, result);
  if (log_sum_exp) log_sum_exp->compare(*computed.log_sum_exp, rows, result);
  return result;
}

Check check(const Inputs& inputs, const Results& computed, const Options& options) {
  return Expected(inputs, computed, options).check(computed);
}

}  // namespace heed::inline v0_2
