// SPDX-License-Identifier: Apache-2.0
// From a call to a Problem, or to a GradientProblem.
#pragma once
#include <cstdint>
#include <span>

#include "problem/gradient_problem.hpp"
#include "problem/problem.hpp"

namespace heed::lowering {

// Checks every argument and lowers the call, or throws Error; writes nothing either way.
Problem make_problem(const Inputs&, const Outputs&, const Options&);

// The same for a call over a cache whose sequences will have these lengths, one per batch entry, when it is
// run. Until then nothing reads the cache, and the problem lacks its `reading`.
using LengthsToCome = std::span<const std::int64_t>;
Problem make_problem(const Inputs&, const Outputs&, const Options&, LengthsToCome);

// The same for results that were computed before: the problem's outputs have extents and no memory.
Problem make_problem_of(const Inputs&, const Results&, const Options&);

// The same for a stream: k and v have extents and no memory.
Problem make_stream_problem(const StreamInputs&, const Outputs&, const Options&);
// That a stretch of keys and values fits what the stream was told, after `so_far` keys.
void check_stretch(const Problem&, const View& k, const View& v, std::int64_t so_far);

// The same for a call to attention_backward().
GradientProblem make_gradient_problem(const Inputs&, const Saved&, const Gradients&, const Options&);

}  // namespace heed::lowering

namespace heed {
using lowering::make_gradient_problem, lowering::make_problem, lowering::make_problem_of,
    lowering::make_stream_problem;
}
