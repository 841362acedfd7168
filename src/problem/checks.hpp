// SPDX-License-Identifier: Apache-2.0
// The checks that make_problem() runs, in this order. Each throws Error or changes nothing.
#pragma once
#include "problem/problem.hpp"
#include "refusal/arguments.hpp"

namespace heed::problem {

// Finds every sequence of the call and fills the extents of the problem.
void place_sequences(const Inputs&, Problem&);
// That q, k, v or the cache fit together, which the extents of everything else are taken from. The problem's
// extents must be set.
void check_inputs(const Problem&);
// Those of the problem, by the names that rules ask for them by.
Extents extents_of(const Problem&);
// Scale, softcap, dropout and the enumerations.
void check_choices(const Outputs&, const Options&);
// Checks the masks, fills the fields of the problem that hold them, and adds what they read to the arguments.
// Its sequences must be set.
void lower_masks(Problem&, const Extents&, Arguments&);

// The strides that repeat the one entry of every axis of extent 1.
Strides broadcast_stride(const Shape& shape, const Strides& stride);

}  // namespace heed::problem
