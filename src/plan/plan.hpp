// SPDX-License-Identifier: Apache-2.0
// The choice among the kernels of all backends. The first that takes a problem runs it; the reference takes
// everything that lies in the CPU's memory and is last.
#pragma once
#include "backend/backend.hpp"

namespace heed::planning {

// The kernel that options.kernel names, or the first that takes the problem. Throws Error where the one that
// is named refuses or does not exist, and where nothing takes the problem.
const Kernel& choose(const Problem&);

// Writes the problem's outputs with a kernel that takes it.
void run(const Kernel&, const Problem&);

}  // namespace heed::planning
