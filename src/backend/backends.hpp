// SPDX-License-Identifier: Apache-2.0
// The backends of this build.
#pragma once
#include <vector>

#include "backend/backend.hpp"

namespace heed::backend {

// In the order their kernels are tried. Not const for the sake of tests.
std::vector<const Backend*>& backends();

// That of a device. Throws Error::device where this build has none: "q.device: cuda, but ...".
const Backend& backend_of(const char* name, Device);

}  // namespace heed::backend

namespace heed {
using backend::backend_of, backend::backends;
}
