// SPDX-License-Identifier: Apache-2.0
// From a call to a Problem.
#pragma once
#include "problem/problem.hpp"

namespace heed::lowering {

// Checks every argument and lowers the call, or throws Error; writes nothing either way.
Problem make_problem(const Inputs&, const Outputs&, const Options&);

// The same for results that were computed before: the problem's outputs have extents and no memory.
Problem make_problem_of(const Inputs&, const Results&, const Options&);

}  // namespace heed::lowering

namespace heed {
using lowering::make_problem, lowering::make_problem_of;
}
