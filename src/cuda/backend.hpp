// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backend/backend.hpp"

namespace heed::cuda {

// Null where this build has none.
const Backend* cuda_backend();

}  // namespace heed::cuda
