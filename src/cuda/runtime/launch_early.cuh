// SPDX-License-Identifier: Apache-2.0
// Launches that begin before those ahead of them on the stream have ended, on Hopper: they have been set up
// when these end, and wait for them by themselves (wait_for_prior_launches()).
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

struct Grid {
  dim3 blocks;
  unsigned threads;  // of a block
  std::size_t shared_bytes = 0;
  int cluster = 1;  // blocks that follow each other
};

// Whether the kernels of this file have code for Hopper, which waits. PTX of an older architecture does not.
// Consteval, since files are compiled for different ones: no linker may choose between two such functions.
consteval bool is_compiled_for_hopper() {
  for (const int architecture : {__CUDA_ARCH_LIST__})
    if (architecture / 10 == 90) return true;
  return false;
}

// A launch as the runtime takes it.
class EarlyLaunch {
 public:
  EarlyLaunch(const Grid& grid, Stream stream) {
    config_.gridDim = grid.blocks, config_.blockDim = dim3(grid.threads);
    config_.dynamicSmemBytes = grid.shared_bytes, config_.stream = stream;
    config_.attrs = attributes_;
    if (grid.cluster > 1) add(cudaLaunchAttributeClusterDimension).clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
    if (is_compiled_for_hopper() && device_facts().major == 9)
      add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
  }
  EarlyLaunch(const EarlyLaunch&) = delete;
  EarlyLaunch& operator=(const EarlyLaunch&) = delete;

  const cudaLaunchConfig_t* config() const { return &config_; }

 private:
  cudaLaunchAttributeValue& add(cudaLaunchAttributeID id) {
    cudaLaunchAttribute& added = attributes_[config_.numAttrs++];
    added.id = id;
    return added.val;
  }

  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

template <class... Parameters>
void launch_early(void (*kernel)(Parameters...), const Grid& grid, Stream stream,
                  const std::type_identity_t<Parameters>&... arguments) {
  check(cudaLaunchKernelEx(EarlyLaunch(grid, stream).config(), kernel, arguments...), "cudaLaunchKernelEx");
}

}  // namespace heed::cuda
