// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "cuda/projection/projection.cuh"

namespace heed::cuda {
namespace {

__global__ void __launch_bounds__(projection_threads) map_linearly(const __grid_constant__ LinearMap m) {
  __shared__ ProjectionMemory memory;
  LinearMapTile(m, memory).run();
}

__global__ void __launch_bounds__(projection_threads) add_gradient(const __grid_constant__ WeightGradient g) {
  __shared__ ProjectionMemory memory;
  WeightGradientTile(g, memory).run();
}

}  // namespace

void launch(const LinearMap& m, Stream stream) {
  if (blocks_of(m) == 0) return;
  map_linearly<<<static_cast<unsigned>(blocks_of(m)), projection_threads, 0, stream>>>(m);
  check(cudaGetLastError(), "cuda: project");
}

void launch(const WeightGradient& g, Stream stream) {
  if (blocks_of(g) == 0) return;
  add_gradient<<<static_cast<unsigned>(blocks_of(g)), projection_threads, 0, stream>>>(g);
  check(cudaGetLastError(), "cuda: gradient of a projection");
}

}  // namespace heed::cuda
