// SPDX-License-Identifier: Apache-2.0
// How far a gradient that a kernel computed in f32 may stray from the reference: computed from the inputs,
// never tuned. docs/numerics.md derives it.
#pragma once
#include <cstdint>

#include "reference/gradient.hpp"

namespace heed::reference {

// Fills in the errors of the terms of a row.
void add_errors(const GradientProblem&, const GradientNumbers&, std::int64_t b, std::int64_t h,
                std::int64_t i, GradientRow&);

// That a term of a sum over so many keys or rows passes through.
double roundings_of(const GradientProblem&, std::int64_t terms);

// Of an element: a sum whose terms are rounded so often, times `factor`, rounded to `dtype`.
double bound_of(const Sum&, double roundings, double factor, DType dtype);

}  // namespace heed::reference
