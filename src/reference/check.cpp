// SPDX-License-Identifier: Apache-2.0
#include "heed/check.hpp"

#include <cmath>
#include <sstream>

#include "heed/half.hpp"
#include "problem/problem.hpp"
#include "reference/bound.hpp"
#include "reference/gathered_cache.hpp"
#include "reference/row.hpp"

namespace heed {
namespace {

double rounded(double value, DType dtype) {
  const float x = static_cast<float>(value);
  if (dtype == DType::f16) return to_float(from_float<f16>(x));
  if (dtype == DType::bf16) return to_float(from_float<bf16>(x));
  return x;
}

struct Place {
  const char* output;
  std::int64_t b, h, i, d;
};

void compare(const MutableView& computed, const Place& at, double expected, double bound, Check& check) {
  const double found = reference::read(computed, at.b, at.h, at.i, at.d);
  const double error = std::abs(found - expected);
  ++check.compared;
  if (std::isfinite(error)) {
    check.worst_error = std::max(check.worst_error, error);
    if (error > 0) check.worst_error_in_bounds = std::max(check.worst_error_in_bounds, error / bound);
  }
  // Infinities are compared after the reference is rounded to the output's type, where large values may
  // overflow.
  const bool both_nan = std::isnan(found) && std::isnan(expected);
  if (both_nan || found == rounded(expected, computed.dtype) || error <= bound) return;
  if (check.beyond_bound++ > 0) return;
  std::ostringstream sentence;
  sentence << at.output << '(' << at.b << ", " << at.h << ", " << at.i << ", " << at.d << ") is " << found
           << ", the reference says " << expected << ", the bound is " << bound;
  check.first_miss = sentence.str();
}

}  // namespace

Check check(const Inputs& inputs, const Outputs& computed, const Options& options) {
  const GatheredCache gathered(make_problem(inputs, computed, options));
  const Problem& p = gathered.problem;
  const reference::Numbers numbers(p);
  Check result;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.sequences[static_cast<std::size_t>(b)].queries; ++i) {
        const reference::Row row = reference::row(p, numbers, b, h, i);
        const reference::RowBound bound(p, numbers, row, b, h, i);
        const std::int64_t at = p.sequences[static_cast<std::size_t>(b)].first_query + i;
        for (std::int64_t d = 0; d < p.value_dim; ++d)
          compare(p.outputs.out, {"out", b, h, at, d}, row.out[static_cast<std::size_t>(d)], bound.out(d),
                  result);
        for (std::int64_t j = 0; computed.weights && j < p.keys; ++j)
          compare(*p.outputs.weights, {"weights", b, h, at, j}, row.weight[static_cast<std::size_t>(j)],
                  bound.weight(j), result);
        if (computed.log_sum_exp)
          compare(*p.outputs.log_sum_exp, {"log_sum_exp", b, h, at, 0}, row.log_sum_exp, bound.log_sum_exp(),
                  result);
      }
  return result;
}

}  // namespace heed
