// SPDX-License-Identifier: Apache-2.0
// Counting differences between results: bit for bit, row by row, and against the oracle under its bound.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>

#include "cases/tolerance.hpp"

namespace heed::cases {

struct Place {
  std::int64_t b, h, i, d;
};
inline std::ostream& operator<<(std::ostream& out, const Place& at) {
  return out << '(' << at.b << ", " << at.h << ", " << at.i << ", " << at.d << ')';
}

// Bitwise on the elements that `where(b, h, i, d)` picks; two tensors of one shape and dtype, any strides.
template <class Where>
testing::AssertionResult same_bits_where(const Tensor& a, const Tensor& b, Where where) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype())
    return testing::AssertionFailure() << "shapes or dtypes differ";
  std::int64_t differ = 0, compared = 0;
  std::ostringstream first;
  for_each(a.shape(), [&](auto n, auto h, auto i, auto d) {
    if (!where(n, h, i, d)) return;
    ++compared;
    if (a.bits(n, h, i, d) == b.bits(n, h, i, d)) return;
    if (differ++ == 0)
      first << Place{n, h, i, d} << " is " << a.at(n, h, i, d) << " and " << b.at(n, h, i, d);
  });
  if (differ == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << differ << " of " << compared << " elements differ, first "
                                     << first.str();
}

inline testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  // The same bytes in the same places need no look at each element.
  if (a.shape() == b.shape() && a.dtype() == b.dtype() && a.stride() == b.stride() &&
      a.memory() == b.memory())
    return testing::AssertionSuccess();
  return same_bits_where(a, b, [](auto...) { return true; });
}

// Every output both asked for.
inline testing::AssertionResult same_bits(const Results& a, const Results& b) {
  auto result = same_bits(a.out, b.out);
  if (result && a.weights && b.weights) result = same_bits(*a.weights, *b.weights) << " in weights";
  if (result && a.log_sum_exp && b.log_sum_exp)
    result = same_bits(*a.log_sum_exp, *b.log_sum_exp) << " in log_sum_exp";
  if (result && a.scores && b.scores) result = same_bits(*a.scores, *b.scores) << " in scores";
  return result;
}

// A problem that the kernel refused leaves nothing to compare; tests/conformance sees that no kernel refuses
// them all.
inline testing::AssertionResult same_bits(const std::optional<Results>& a, const std::optional<Results>& b) {
  return a && b ? same_bits(*a, *b) : testing::AssertionSuccess();
}

class Tally {
 public:
  void compare(const char* what, const Place& where, double found, double expected, double bound) {
    ++compared;
    const bool both_nan = std::isnan(found) && std::isnan(expected);
    if (both_nan || found == expected || std::abs(found - expected) <= bound) return;
    if (beyond++ > 0) return;
    std::ostringstream s;
    s << what << where << " is " << found << ", expected " << expected << ", bound " << bound;
    first = s.str();
  }
  operator testing::AssertionResult() const {
    if (beyond == 0 && compared > 0) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << beyond << " of " << compared << " elements beyond the bound, first: " << first;
  }
  std::int64_t compared = 0, beyond = 0;
  std::string first{};
};

inline double stage_of(const OracleRow& row, Stage stage, std::size_t j) {
  return stage == Stage::raw ? row.raw[j] : stage == Stage::softcapped ? row.softcapped[j] : row.biased[j];
}

// out, weights, log-sum-exp and scores against the oracle; u is the unit roundoff of the arithmetic under
// test.
inline Tally against_oracle(const Call& call, const Results& got, double u, const Survives& survives = {}) {
  Tally tally;
  for (std::int64_t b = 0; b < call.batch(); ++b)
    for (std::int64_t h = 0; h < call.heads(); ++h)
      for (std::int64_t i = 0; i < call.queries(); ++i) {
        const OracleRow row = oracle_row(call, b, h, i, survives);
        const RowTolerance tolerance(call, row, u);
        for (std::size_t d = 0; d < row.out.size(); ++d) {
          const auto n = static_cast<std::int64_t>(d);
          tally.compare("out", Place{b, h, i, n}, got.out.at(b, h, i, n), row.out[d],
                        tolerance.out(row, d, got.out.dtype()));
        }
        for (std::size_t j = 0; j < row.raw.size(); ++j) {
          const auto n = static_cast<std::int64_t>(j);
          const Place at{b, h, i, n};
          if (got.weights)
            tally.compare("weights", at, got.weights->at(b, h, i, n), row.weight[j],
                          tolerance.weight(row, j));
          if (!got.scores) continue;
          tally.compare("scores", at, got.scores->at(b, h, i, n), stage_of(row, got.stage, j),
                        tolerance.score_of(row, j));
        }
        if (got.log_sum_exp)
          tally.compare("log_sum_exp", Place{b, h, i, 0}, got.log_sum_exp->at(b, h, i, 0), row.log_sum_exp,
                        tolerance.log_sum_exp(row));
      }
  return tally;
}

}  // namespace heed::cases
