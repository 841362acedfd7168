// SPDX-License-Identifier: Apache-2.0
// The choice among the kernels of all backends, and what is done with the chosen one. The first that takes a
// problem runs it; the reference takes everything that lies in the CPU's memory and is last.
#pragma once
#include <memory>
#include <optional>

#include "backend/backend.hpp"
#include "heed/gradient.hpp"
#include "heed/stream.hpp"
#include "problem/problem.hpp"

namespace heed::api {

// The kernel that options.kernel names, or the first that takes the problem. Throws Error where the one that
// is named refuses or does not exist, and where nothing takes the problem.
const Kernel& choose(Work, const Problem&);
const Kernel& choose(const GradientProblem&);

// Writes the problem's outputs with a kernel that takes it.
void run(const Kernel&, const Problem&);

// attention_backward() of some heads of a larger call. `place` says which heads of it they are, for dropout;
// they have all of its queries.
void attention_backward(const Inputs&, const Saved&, const Gradients&, const Options&,
                        const std::optional<Place>& place);

// Where there are no keys to repair rows with: throws Error::value, which names the first row that needs it,
// if any does. `name` is that of the call.
void check_none_needs_repair(const char* name, const Problem&);

}  // namespace heed::api
