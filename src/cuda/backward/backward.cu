// SPDX-License-Identifier: Apache-2.0
// The steps around the products of a backward pass (backward.hpp).
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/backward/backward.hpp"
#include "cuda/backward/complete.cuh"
#include "cuda/backward/mask.cuh"
#include "cuda/backward/rows.cuh"
#include "cuda/runtime/kernels.hpp"
#include "cuda/tile/block.cuh"

namespace heed::cuda {
namespace {

__global__ void __launch_bounds__(gradient_threads) prepare_exact(const __grid_constant__ GradientCall g) {
  prepare_exact_row(g);
}

// A warp for each row: neighbouring lanes read neighbouring numbers.
__global__ void __launch_bounds__(gradient_threads) prepare(const __grid_constant__ GradientCall g) {
  const std::int64_t n = block_index() * (gradient_threads / 32) + warp_index();
  if (n >= g.all_rows()) return;
  const RowOfQueries of(g, n);
  if (!of.is_real) {
    if (lane_index() == 0) write_no_row(g, n, of.q);
    return;
  }
  const Row gradient = row_of(g.out_gradient, of.q), out = row_of(g.forward.out, of.q);
  float delta = 0;
  for (std::int64_t d = lane_index(); d < g.forward.value_dim; d += 32)
    delta = fmaf(read(gradient, d), read(out, d), delta);
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) delta = delta + shuffle_xor(delta, bits);
  if (lane_index() == 0) write_row_numbers(g, n, of.q, delta, true);
}

__global__ void __launch_bounds__(gradient_threads) sink_gradient(const __grid_constant__ GradientCall g) {
  __shared__ SinkGradient::Shared terms;
  SinkGradient::run(g, terms);
}

__global__ void __launch_bounds__(gradient_threads)
    complete(const __grid_constant__ GradientCall g, std::int64_t blocks) {
  __shared__ Completion::Shared memory;
  Completion(g, memory).run(blocks);
}

__global__ void __launch_bounds__(MaskTiles::keys)
    pack_mask_tiles(const __grid_constant__ Call c, const __grid_constant__ MaskTiles mask) {
  pack_mask_tile(c, mask);
}

unsigned blocks_for(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

void launch_prepare(const GradientCall& g, Sums sums, Stream stream) {
  if (g.all_rows() == 0) return;
  if (sums == Sums::of_the_cpu)
    prepare_exact<<<blocks_for(g.all_rows(), gradient_threads), gradient_threads, 0, stream>>>(g);
  else
    prepare<<<blocks_for(g.all_rows(), gradient_threads / 32), gradient_threads, 0, stream>>>(g);
  check(cudaGetLastError(), "backward: rows");
}

MaskTiles packed(const Call& c, MaskTiles mask, std::byte* memory, Stream stream) {
  if (mask.is_empty()) return mask;
  mask.words = reinterpret_cast<const KeyBits*>(memory);
  if (mask.tiles() == 0) return mask;  // of no keys
  pack_mask_tiles<<<static_cast<unsigned>(mask.tiles()), MaskTiles::keys, 0, stream>>>(c, mask);
  check(cudaGetLastError(), "backward: masks");
  return mask;
}

void launch_sink_gradient(const GradientCall& g, Stream stream) {
  if (g.sink.elements() == 0) return;
  sink_gradient<<<static_cast<unsigned>(g.sink.elements()), gradient_threads, 0, stream>>>(g);
  check(cudaGetLastError(), "backward: sink");
}

void launch_completion(const GradientCall& g, Stream stream) {
  const std::int64_t marks = Completion::max_marks(g);
  if (marks == 0) return;
  const unsigned blocks = std::min(blocks_for(marks, gradient_threads),
                                   static_cast<unsigned>(4 * device_facts().multiprocessors));
  complete<<<blocks, gradient_threads, 0, stream>>>(g, blocks);
  check(cudaGetLastError(), "backward: completion");
}

}  // namespace heed::cuda
