// SPDX-License-Identifier: Apache-2.0
// A build without CUDA.
#include "cache/device_pages.hpp"
#include "cuda/backend.hpp"
#include "refusal/refusal.hpp"

namespace heed::cuda {

const Backend* cuda_backend() { return nullptr; }

}  // namespace heed::cuda

std::unique_ptr<heed::cache::DevicePages> heed::cache::pages_on_cuda(std::int64_t) {
  throw refusal(Error::device, "config.device: cuda, but this build has no CUDA backend");
}
