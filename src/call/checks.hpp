// SPDX-License-Identifier: Apache-2.0
// lower() and the checks that it runs, in this order. Each throws Error or changes nothing.
#pragma once
#include "call/make_problem.hpp"
#include "refusal/argument.hpp"

namespace heed::call {

// Every check, in the order in which faults are reported, and all of a problem but its inputs, outputs and
// options, which must be set.
void lower(Problem&, Arguments&, const std::optional<LengthsToCome>& = {});

// Whether there is nothing to compute (S14) and batch entries are alike, so that one sequence stands for all.
bool writes_nothing(const Inputs&, std::span<const Argument>);
// Finds every sequence of the call and fills the extents of the problem.
void place_sequences(const Inputs&, Problem&, const std::optional<LengthsToCome>&, bool one_for_all);
// That q, k, v or the cache fit together, which the extents of everything else are taken from. The problem's
// extents must be set.
void check_inputs(const Problem&);
// Those of the problem, by the names that rules ask for them by.
Extents extents_of(const Problem&);
// Scale, softcap, dropout and the enumerations.
void check_choices(const Outputs&, const Options&);
// The key at the position of query 0 of a sequence, for a mask or an option of that name.
std::int64_t offset_of(const char* name, std::optional<Align>, const Problem&, const Sequence&);
// That there are as many slopes as heads, or as batch entries and heads, and that all are finite.
void check_slopes(std::span<const float>, std::int64_t batch, std::int64_t heads);
// Checks the slopes and where their distances begin. The problem's sequences must be set.
void lower_alibi(Problem&);
// Checks the masks, fills the fields of the problem that hold them, and adds what they read to the arguments.
// Its sequences must be set.
void lower_masks(Problem&, const Extents&, Arguments&);

// Keys or queries without dimensions, which have scores of 0 (S1), as ones with a single dimension, which is
// 0 throughout: no kernel has to know. Any other view as it is.
View with_dimensions(const View&);

// The strides that repeat the one entry of every axis of extent 1.
Strides broadcast_stride(const Shape& shape, const Strides& stride);

}  // namespace heed::call
