// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/projection/few.cuh"
#include "cuda/projection/matrix.cuh"
#include "cuda/projection/projection.cuh"

namespace heed::cuda {
namespace {

__global__ void __launch_bounds__(32 * few_warps) map_few_rows(const __grid_constant__ LinearMap m) {
  FewRows(m).run();
}

template <class Shape>
HEED_DEVICE ProjectionMemory<Shape>& memory_of(unsigned char* memory) {
  return *reinterpret_cast<ProjectionMemory<Shape>*>(memory);
}

// One block of large squares: for two, 212 bytes of a thread's registers would be in memory, and 4096 tokens
// of a layer take 17.3 ms instead of 16.3 (H200, November 2026).
template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1) map_linearly(const __grid_constant__ LinearMap m) {
  extern __shared__ unsigned char memory[];
  LinearMapTile<Shape>(m, memory_of<Shape>(memory), block_index()).run();
}

// Tiles of one chain, then those of the next.
template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 2)
    map_chains(const __grid_constant__ LinearMap m, float* chains) {
  extern __shared__ unsigned char memory[];
  const std::int64_t tiles = blocks_of<Shape>(m), chain = block_index() / tiles;
  LinearMapTile<Shape>(m, memory_of<Shape>(memory), block_index() - chain * tiles).run_chain(chain, chains);
}

constexpr int sum_threads = 256;
__global__ void __launch_bounds__(sum_threads)
    add_chains(const __grid_constant__ LinearMap m, const float* chains) {
  ChainSum::run(m, chains, block_index() * sum_threads + thread_index());
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 2) add_gradient(const __grid_constant__ WeightGradient g) {
  extern __shared__ unsigned char memory[];
  WeightGradientTile<Shape>(g, memory_of<Shape>(memory), block_index()).run();
}

template <class Shape, class... Arguments>
void launch_squares(void (*kernel)(Arguments...), std::int64_t blocks, Stream stream,
                    const std::type_identity_t<Arguments>&... arguments) {
  constexpr int bytes = sizeof(ProjectionMemory<Shape>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(blocks), Shape::threads, bytes, stream>>>(arguments...);
}

template <class Shape>
void launch_map(const LinearMap& m, Stream stream) {
  launch_squares<Shape>(map_linearly<Shape>, blocks_of<Shape>(m), stream, m);
}
void launch_chains(const LinearMap& m, float* chains, Stream stream) {
  using Shape = SmallSquares;
  launch_squares<Shape>(map_chains<Shape>, blocks_of<Shape>(m) * chains_of(m), stream, m, chains);
  add_chains<<<static_cast<unsigned>(tiles_of(m.rows * m.out, sum_threads)), sum_threads, 0, stream>>>(
      m, chains);
}
template <class Shape>
void launch_gradient(const WeightGradient& g, Stream stream) {
  launch_squares<Shape>(add_gradient<Shape>, blocks_of<Shape>(g), stream, g);
}

void launch_in_f32(const LinearMap& m, float* chains, Stream stream) {
  switch (kernel_in_f32(m, device_facts().multiprocessors)) {
    case InF32::lanes:
      map_few_rows<<<static_cast<unsigned>(few_blocks(m)), 32 * few_warps, 0, stream>>>(m);
      return;
    case InF32::large_squares:
      return launch_map<LargeSquares>(m, stream);
    case InF32::small_squares:
      return launch_map<SmallSquares>(m, stream);
    case InF32::chains:
      return launch_chains(m, chains, stream);
  }
}

template <Type type, class Shape>
__global__ void __launch_bounds__(Shape::threads, 2)
    map_by_matrix_units(const __grid_constant__ LinearMaps maps) {
  extern __shared__ unsigned char memory[];
  const MapTile<Shape> tile(maps, block_index());
  multiply_by_matrix_units<type, Shape>(tile.map, tile.number, shared_address(memory));
}

template <Type type, class Shape>
void launch_matrix_shape(const LinearMaps& maps, Stream stream) {
  const auto kernel = map_by_matrix_units<type, Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes),
        "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(tiles_of<Shape>(maps)), Shape::threads, Shape::shared_bytes, stream>>>(maps);
  check(cudaGetLastError(), "cuda: project");
}

template <Type type>
void launch_matrix(const LinearMaps& maps, Stream stream) {
  const std::int64_t rows = maps.map[0].rows;
  if (rows <= FewRowsShape::rows) return launch_matrix_shape<type, FewRowsShape>(maps, stream);
  if (rows <= SomeRowsShape::rows) return launch_matrix_shape<type, SomeRowsShape>(maps, stream);
  if (tiles_of<AllRowsShape>(maps) < device_facts().multiprocessors)
    return launch_matrix_shape<type, ManyRowsShape>(maps, stream);
  launch_matrix_shape<type, AllRowsShape>(maps, stream);
}

}  // namespace

void launch(const LinearMaps& maps, Stream stream) {
  const LinearMap& first = maps.map[0];
  if (first.rows == 0) return;
  const bool has_units = is_for_matrix_units(first.w_type, first.x.tensor.type);
  if (has_units && device_facts().major == 9) return launch_on_hopper(maps, stream);
  if (has_units)
    return first.w_type == Type::bf16 ? launch_matrix<Type::bf16>(maps, stream)
                                      : launch_matrix<Type::f16>(maps, stream);
  for (int n = 0; n < maps.count; ++n) {
    launch_in_f32(maps.map[n], maps.chains, stream);
    check(cudaGetLastError(), "cuda: project");
  }
}

void launch(const WeightGradient& g, Stream stream) {
  if (blocks_of<SmallSquares>(g) == 0) return;
  if (blocks_of<LargeSquares>(g) >= device_facts().multiprocessors)
    launch_gradient<LargeSquares>(g, stream);
  else
    launch_gradient<SmallSquares>(g, stream);
  check(cudaGetLastError(), "cuda: gradient of a projection");
}

}  // namespace heed::cuda
