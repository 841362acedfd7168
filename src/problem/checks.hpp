// SPDX-License-Identifier: Apache-2.0
// The checks that make_problem() runs, in this order. Each throws Error or changes nothing.
#pragma once
#include "problem/problem.hpp"
#include "refusal/argument.hpp"

namespace heed::problem {

// Every array of the call by itself, except the masks.
void check_views(const Inputs&, const Outputs&, const Options&);
// Finds every sequence of the call and fills the extents of the problem.
void place_sequences(const Inputs&, Problem&);
// That extents and dtypes fit together. The problem's extents must be set.
void check_shapes(const Problem&);
void check_dtypes(const Inputs&, const Outputs&, const Options&);
// Scale, softcap, dropout and the enumerations.
void check_choices(const Outputs&, const Options&);
// Checks the masks and fills the fields of the problem that hold them. Its sequences must be set.
void lower_masks(Problem&);
// No output shares memory with itself, another output or anything that is read.
void check_overlap(const Inputs&, const Outputs&, const Options&);

// The strides that repeat the one entry of every axis of extent 1.
Strides broadcast_stride(const Shape& shape, const Strides& stride);
void check_broadcasts(const Argument&, const char* axes_in_words, const Shape& target);

}  // namespace heed::problem
