// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.hpp"
#include "cpu/backend.hpp"
#include "cuda/backend.hpp"
#include "heed/attention.hpp"
#include "threads/allowed.hpp"

namespace heed::backend {

// Never destroyed, as nothing is that a call reads: threads may be at work when the process ends.
std::vector<const Backend*>& backends() {
  static auto& all = *[] {
    auto* list = new std::vector<const Backend*>{&cpu::cpu_backend()};
#if defined(HEED_HAS_CUDA)
    list->push_back(&cuda::cuda_backend());
#endif
    return list;
  }();
  return all;
}

const Backend& backend_of(const char* name, Device device) {
  for (const Backend* backend : backends())
    if (backend->device == device) return *backend;
  if (device == Device::cuda)
    throw refusal(Error::device, name, ".device: cuda, but this build has no CUDA backend");
  throw unknown_device(name, device);
}

}  // namespace heed::backend

namespace HEED_NAMESPACE {

std::vector<std::string> environment_warnings() {
  std::vector<std::string> found;
  for (const std::string& fault : {cpu::target_variable_fault(), threads::threads_variable_fault()})
    if (!fault.empty()) found.push_back(fault);
  return found;
}

}  // namespace HEED_NAMESPACE
