// SPDX-License-Identifier: Apache-2.0
// The backward pass made ready to run.
#pragma once
#include "bench/workload.hpp"

namespace heed::tool {

std::unique_ptr<Workload> make_backward_workload(const Case&);

}  // namespace heed::tool
