// SPDX-License-Identifier: Apache-2.0
// The choice among the kernels for caches that are spread over ranks.
#pragma once
#include <memory>

#include "backend/backend.hpp"

namespace heed::planning {

// With the kernel that options.kernel names, or the first that takes the problem. Throws Error where there is
// none.
std::unique_ptr<SpreadDecode> begin_spread(const Problem&, const Spread&);

}  // namespace heed::planning
