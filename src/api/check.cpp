// SPDX-License-Identifier: Apache-2.0
// check(): every row of the reference once, on all threads, and results, or gradients, held against it. What
// lies on a device is brought to the CPU's memory first.
#include "heed/check.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

#include "api/gathered_cache.hpp"
#include "backend/backend.hpp"
#include "call/make_problem.hpp"
#include "heed/gradient.hpp"
#include "heed/half.hpp"
#include "reference/bound.hpp"
#include "reference/gradient.hpp"
#include "reference/row.hpp"
#include "refusal/refusal.hpp"
#include "threads/pool.hpp"

namespace heed::api {

class ViewOnHost {
 public:
  ViewOnHost(const char* name, const View&);
  const View& view() const { return view_; }

 private:
  Memory memory_{};
  View view_;
};

// A problem, with plain keys and values in place of a cache.
class ProblemOnHost {
 public:
  explicit ProblemOnHost(const Problem&);
  const Problem& problem() const { return gathered_.problem; }

 private:
  api::GatheredCache gathered_;
  ViewOnHost q_, k_, v_;
  std::optional<ViewOnHost> bias_{}, sink_{};
};

ViewOnHost::ViewOnHost(const char* name, const View& x) : view_(x) {
  if (x.device == Device::cpu) return;
  const auto bytes = static_cast<std::size_t>(x.shape.elements()) * bytes_of(x.dtype);
  memory_ = backend_of(name, Device::cpu).allocate(bytes);
  const MutableView copy{memory_.get(), x.shape, x.dtype};
  backend_of(name, x.device).copy(x, copy);
  view_ = copy;
  if (x.shape.batch == 1) view_.stride.batch = 0;  // as packed sequences share their rows
}

ProblemOnHost::ProblemOnHost(const Problem& p)
    : gathered_(p, backend_of("q", Device::cpu)),
      q_("q", problem().inputs.q),
      k_("k", problem().inputs.k),
      v_("v", problem().inputs.v) {
  Problem& own = gathered_.problem;
  for (const BoolMask& mask : own.bool_masks)
    if (mask.device != Device::cpu)
      throw refusal(Error::unsupported, "options.masks: a check reads booleans of the CPU's memory, not of ",
                    mask.device, "'s");
  if (own.bias) own.bias = bias_.emplace("options.bias", *own.bias).view();
  if (own.sink) own.sink = sink_.emplace("options.sink", *own.sink).view();
  own.inputs.q = q_.view();
  own.inputs.k = k_.view();
  own.inputs.v = v_.view();
}

// One element of a result against the reference and its bound.

struct ExpectedElement {
  double value, bound;
};

struct ElementPlace {
  const char* name;  // of the result
  Shape place;
  DType dtype;
};

void compare(const ElementPlace&, double found, const ExpectedElement&, Check&);

namespace {

double rounded(double value, DType dtype) {
  if (dtype == DType::f64) return value;
  const float x = static_cast<float>(value);
  if (dtype == DType::f16) return to_float(from_float<f16>(x));
  if (dtype == DType::bf16) return to_float(from_float<bf16>(x));
  return x;
}

// An infinity is within the bound where a number is that still rounds to it: the bound has half a step for
// the rounding itself, and the next step after the largest number ends here.
bool may_overflow_to(double found, const ExpectedElement& expected, DType dtype) {
  const double farthest = std::copysign(1.0, found) * expected.value + expected.bound;
  if (dtype == DType::f64) return std::isinf(found) && std::isinf(farthest);
  return std::isinf(found) && farthest >= (dtype == DType::f16 ? 0x1p16 : 0x1p128);
}

std::string with_digits(double number, int digits) {
  if (std::isnan(number)) return "nan";
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::general, digits);
  return {text.data(), end.ptr};
}

}  // namespace

void compare(const ElementPlace& at, double found, const ExpectedElement& expected, Check& check) {
  const double error = std::abs(found - expected.value);
  ++check.compared;
  if (std::isfinite(error)) {
    check.worst_error = std::max(check.worst_error, error);
    if (error > 0)
      check.worst_error_in_bounds = std::max(check.worst_error_in_bounds, error / expected.bound);
  }
  // Infinities are compared after the reference is rounded to the output's type, where large values may
  // overflow.
  if (expected.bound == INFINITY) return;  // nothing can be said
  const bool both_nan = std::isnan(found) && std::isnan(expected.value);
  if (both_nan || found == rounded(expected.value, at.dtype) || error <= expected.bound) return;
  if (may_overflow_to(found, expected, at.dtype)) return;
  if (check.beyond_bound++ > 0) return;
  check.first_miss = at.name + in_words(at.place) + " is " +
                     (at.dtype == DType::f64 ? with_digits(found, 17) : in_words(static_cast<float>(found))) +
                     ", the reference says " + with_digits(expected.value, at.dtype == DType::f64 ? 17 : 9) +
                     ", the bound is " + with_digits(expected.bound, 3);
}

}  // namespace heed::api

// Every row of the reference once, on all threads, and results against it.

namespace HEED_NAMESPACE {
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
  using Element = api::ExpectedElement;

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
      backend_of(name, computed->device);
      check_argument({name, *computed, {.types = Rule::any_or_f64}});
      if (computed->shape != shape)
        throw refusal(Error::shape, name, ".shape: ", computed->shape, " is not the one expected: ", shape);
      if (computed->dtype != dtype)
        throw refusal(Error::dtype, name, ".dtype: ", name_of(computed->dtype),
                      " is not the one expected: ", name_of(dtype));
    }

    void compare(const View& computed, const std::vector<std::int64_t>& of_queries, Check& check) const {
      const api::ViewOnHost found(name, computed);
      for (const std::int64_t row : of_queries) {
        const std::int64_t i = row % shape.length, head = row / shape.length;
        const std::int64_t h = head % shape.heads, b = head / shape.heads;
        const Element* expected = elements.data() + row * shape.dim;
        for (std::int64_t d = 0; d < shape.dim; ++d)
          api::compare({name, {b, h, i, d}, dtype}, reference::read(found.view(), b, h, i, d), expected[d],
                       check);
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
  backend_of("q", inputs.q.device);
  const api::ProblemOnHost held(make_problem_of(inputs, results, options));
  const Problem& p = held.problem();
  const threads::ForOneCall for_call(options.threads, options.executor);
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

// Gradients against the reference, every query once, on all threads.

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
  reference::Unit unit;
};

void compare(const Computed& c, Check& check) {
  if (!c.view) return;
  const Shape& s = c.view->shape;
  const reference::SumBound bound(c.unit, c.roundings, c.factor, c.view->dtype);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.length; ++i)
        for (std::int64_t d = 0; d < s.dim; ++d) {
          const reference::Sum& sum = c.expected->at(b, h, i, d);
          api::compare({c.name, {b, h, i, d}, c.view->dtype}, reference::read(*c.view, b, h, i, d),
                       {c.factor * sum.value, bound.of(sum)}, check);
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
  const threads::ForOneCall for_call(options.threads, options.executor);
  reference::GradientSums expected = expected_of(g);
  const std::int64_t rows = p.kv_heads == 0 ? 0 : p.heads / p.kv_heads * p.queries;
  const Shape all{p.batch, p.heads, p.queries, p.keys};
  const double scale = *p.options.scale;
  const reference::Unit unit = reference::unit_of(p);
  Check result;
  using reference::roundings_of;
  compare({"gradients.q", computed.q, expected.q, roundings_of(g, p.keys), scale, unit}, result);
  compare({"gradients.k", computed.k, expected.k, roundings_of(g, rows), scale, unit}, result);
  compare({"gradients.v", computed.v, expected.v, roundings_of(g, rows), 1, unit}, result);
  compare({"gradients.bias", computed.bias, expected.bias, sharing(computed.bias, all), 1, unit}, result);
  compare({"gradients.sink", computed.sink, expected.sink,
           sharing(computed.sink, {p.batch, p.heads, p.queries, 1}), 1, unit},
          result);
  return result;
}

}  // namespace HEED_NAMESPACE
