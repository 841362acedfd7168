// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backend/backend.hpp"

namespace heed::cuda {

// Of a build with HEED_CUDA.
const Backend& cuda_backend();

}  // namespace heed::cuda
