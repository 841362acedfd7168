// SPDX-License-Identifier: Apache-2.0
// A build without CUDA.
#include "cuda/backend.hpp"

namespace heed::cuda {

const Backend* cuda_backend() { return nullptr; }

}  // namespace heed::cuda
