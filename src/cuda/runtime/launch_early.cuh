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
};

// Whether the kernels of this file have code for Hopper, which waits. PTX of an older architecture does not.
// Consteval, since files are compiled for different ones: no linker may choose between two such functions.
consteval bool is_compiled_for_hopper() {
  for (const int architecture : {__CUDA_ARCH_LIST__})
    if (architecture / 10 == 90) return true;
  return false;
}

template <class... Parameters>
void launch_early(void (*kernel)(Parameters...), const Grid& grid, Stream stream,
                  const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks, config.blockDim = dim3(grid.threads);
  config.dynamicSmemBytes = grid.shared_bytes, config.stream = stream;
  config.attrs = &early, config.numAttrs = is_compiled_for_hopper() && device_facts().major == 9 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx");
}

}  // namespace heed::cuda
