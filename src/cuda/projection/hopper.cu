// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "cuda/projection/hopper.cuh"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {
namespace {

template <Type type, class Shape>
__global__ void __launch_bounds__(Shape::threads, 1) map_on_hopper(const __grid_constant__ LinearMaps maps) {
  extern __shared__ unsigned char bytes[];
  unsigned char* memory = bytes;
  const MapTile<Shape> tile(maps, block_index());
  multiply_on_hopper<type, Shape>(tile.map, tile.number, align_1024(memory));
}

template <Type type, class Shape>
void launch_shape(const LinearMaps& maps, Stream stream) {
  const auto kernel = map_on_hopper<type, Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes),
        "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(tiles_of<Shape>(maps)), Shape::threads, Shape::shared_bytes, stream>>>(maps);
  check(cudaGetLastError(), "cuda: project");
}

template <Type type>
void launch_type(const LinearMaps& maps, Stream stream) {
  if (maps.map[0].rows <= FewRowsOnHopper::rows) return launch_shape<type, FewRowsOnHopper>(maps, stream);
  if (tiles_of<ManyRowsOnHopper>(maps) < device_facts().multiprocessors)
    return launch_shape<type, SomeRowsOnHopper>(maps, stream);
  launch_shape<type, ManyRowsOnHopper>(maps, stream);
}

}  // namespace

void launch_on_hopper(const LinearMaps& maps, Stream stream) {
  maps.map[0].w_type == Type::bf16 ? launch_type<Type::bf16>(maps, stream)
                                   : launch_type<Type::f16>(maps, stream);
}

}  // namespace heed::cuda
