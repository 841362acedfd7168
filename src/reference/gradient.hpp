// SPDX-License-Identifier: Apache-2.0
// The gradients that the specification defines, in double precision (G9): what one query contributes, and the
// sums of what all of them do. Beside every number goes how far a kernel's may be from it
// (gradient_bound.hpp).
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "problem/problem.hpp"
#include "reference/row.hpp"

namespace heed::reference {

struct GradientNumbers {
  explicit GradientNumbers(const GradientProblem& g)
      : forward(g.forward), out(g.out), out_gradient(g.out_gradient) {}

  Numbers forward;
  Rows out, out_gradient;
};

struct Term {
  double value = 0, error = 0;
  double lost = 0;  // of its product with anything
};

// One query of one head: what each key's value, score and product q * k get from it.
struct GradientRow {
  Row scores;
  std::vector<double> weight;  // before dropout, by the saved log-sum-exp
  std::vector<double>
      weight_gradient;  // by the weight before dropout, less delta, and with that of the log-sum-exp
  std::vector<Term> applied, score, raw;
  double log_sum_exp = 0, delta = 0;
  Term sink{};
  bool sees_no_key = true;
};

GradientRow gradient_row(const GradientProblem&, const GradientNumbers&, std::int64_t b, std::int64_t h,
                         std::int64_t i);

// A sum of products in the making: its value, the errors of its terms, and the magnitudes that roundings of
// the sum itself are measured against.
struct Sum {
  double value = 0, error = 0, magnitude = 0;

  void add(const Term& t, double x = 1) {
    value += t.value * x;
    if (std::isinf(t.error)) {  // nothing is known of it, not that it is a number
      error = t.error;
      return;
    }
    error += t.error * std::abs(x) + t.lost;
    magnitude += (std::abs(t.value) + t.error) * std::abs(x);
  }
};

// One gradient, element by element in the extents of what it is the gradient of.
struct SumTensor {
  Shape shape{};
  std::vector<Sum> sums{};

  SumTensor() = default;
  explicit SumTensor(const Shape& s) : shape(s), sums(static_cast<std::size_t>(s.elements())) {}
  // An extent of 1 is every index's.
  Sum& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d);
};

// Of those gradients that were asked for. What is rounded last, and the scale, are not in them.
struct GradientSums {
  explicit GradientSums(const GradientProblem&);

  std::optional<SumTensor> q, k, v, bias, sink;
};

// Adds what one query contributes, where `into` has the gradient.
void add(const GradientProblem&, const GradientNumbers&, const GradientRow&, std::int64_t b, std::int64_t h,
         std::int64_t i, GradientSums& into);

// Every gradient, written: the kernel named "reference".
void run(const GradientProblem&);

}  // namespace heed::reference
