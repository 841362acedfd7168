// SPDX-License-Identifier: Apache-2.0
// How far a kernel that computes in f32, or in f64 where q is, may stray from the reference, row by row:
// computed from the inputs, never tuned. docs/bounds.md derives it. This is the only tolerance in the
// project.
#pragma once
#include <cstdint>
#include <vector>

#include "problem/problem.hpp"
#include "reference/gradient.hpp"
#include "reference/row.hpp"

namespace heed::reference {

constexpr double min_normal = 0x1p-126;  // below it matrix instructions for bf16 take a number for 0

// What kernels compute in: f32 where nothing else is said.
struct Unit {
  double u = 0x1p-24;              // unit roundoff
  double underflow = 0x1p-125;     // weights below half of it, as parts of the row's largest, become 0
  double half_spacing = 0x1p-150;  // of the subnormals: what rounding to one may lose
  double exp2_error = 4 * u;       // relative, of the kernels' exp2; measured over every float by tests/simd
  double tanh_error = 8 * u;       // relative, of the kernels' tanh; likewise

  double gamma(double roundings) const { return roundings * u / (1 - roundings * u); }
};
// f32; or f64, twice, since the reference then rounds as often as the kernel does.
Unit unit_of(const Problem&);

double roundoff(DType);
double smallest(DType);  // half the spacing of the subnormals, which rounding may lose whatever the value

class RowBound {
 public:
  RowBound(const Problem&, const Numbers&, const Row&, std::int64_t b, std::int64_t h, std::int64_t i);

  double out(std::int64_t d) const;     // of out(b, h, i, d)
  double weight(std::int64_t j) const;  // of weights(b, h, i, j)
  double log_sum_exp() const;

  double score_error() const { return score_error_; }
  double largest_score() const { return largest_score_; }

 private:
  const Problem& p_;
  const Row& row_;
  Unit unit_;
  std::vector<double> magnitude_;      // of the values under their weights, for each d
  std::vector<double> largest_value_;  // among those the row sees, for each d
  double score_error_;                 // absolute, of a score in natural units
  double relative_error_;              // of a weight, score errors included
  double largest_score_;
};

// How far a gradient that a kernel computed in f32 may stray from the reference: computed from the inputs,
// never tuned. docs/bounds.md derives it.

// Fills in the errors of the terms of a row.
void add_errors(const GradientProblem&, const GradientNumbers&, std::int64_t b, std::int64_t h,
                std::int64_t i, GradientRow&);

// That a term of a sum over so many keys or rows passes through.
double roundings_of(const GradientProblem&, std::int64_t terms);

// Of the elements of one gradient: sums whose terms are rounded so often, times `factor`, rounded to `dtype`.
// What they have in common is computed once, and so is the bound of a sum without terms: products with f64's
// smallest number were a third of the time of a check of random problems.
class SumBound {
 public:
  SumBound(const Unit&, double roundings, double factor, DType dtype);

  double of(const Sum&) const;

 private:
  double of_terms(const Sum&) const;

  double factor_, gamma_, spacing_, roundoff_, smallest_, of_nothing_;
};

}  // namespace heed::reference
