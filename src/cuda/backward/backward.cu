// SPDX-License-Identifier: Apache-2.0
// The steps around the products of a backward pass (backward.hpp).
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/backward/backward.hpp"
#include "cuda/backward/complete.cuh"
#include "cuda/backward/mask.cuh"
#include "cuda/backward/prepare.cuh"
#include "cuda/backward/rows.cuh"
#include "cuda/runtime/kernels.hpp"
#include "cuda/runtime/launch_early.cuh"
#include "cuda/tile/block.cuh"

namespace heed::cuda {
namespace {

__global__ void __launch_bounds__(gradient_threads) prepare_exact(const __grid_constant__ GradientCall g) {
  prepare_exact_row(g);
}

template <Type type, int pieces>
__global__ void __launch_bounds__(gradient_threads) prepare(const __grid_constant__ GradientCall g) {
  launch_dependents();
  RowPreparation<type, pieces>::run(g);
}

using Prepare = void (*)(GradientCall);
template <Type type>
Prepare prepare_of(std::int64_t dim) {
  return dim <= 64 ? prepare<type, 1> : dim <= 128 ? prepare<type, 2> : prepare<type, 4>;
}
// Whether a row of what has its dimensions side by side can be read 16 bytes at a time.
bool lies_in_pieces(const Tensor& t, std::int64_t dim) {
  const TensorStrides& s = t.stride;
  return s.dim == 1 && dim % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 &&
         (s.batch | s.heads | s.length) % 8 == 0;
}
Prepare prepare_for(const GradientCall& g) {
  const Tensor &x = g.out_gradient, &y = g.forward.out;
  const std::int64_t dim = g.forward.value_dim;
  if (dim > 256 || x.type != y.type || !lies_in_pieces(x, dim) || !lies_in_pieces(y, dim))
    return prepare<Type::bf16, 0>;
  return x.type == Type::bf16  ? prepare_of<Type::bf16>(dim)
         : x.type == Type::f16 ? prepare_of<Type::f16>(dim)
                               : prepare<Type::bf16, 0>;
}

__global__ void __launch_bounds__(gradient_threads) sink_gradient(const __grid_constant__ GradientCall g) {
  __shared__ SinkGradient::Shared terms;
  SinkGradient::run(g, terms);
}

// The steps of a completion: nearly always there is nothing to do.
__global__ void __launch_bounds__(gradient_threads)
    find_double_rows(const __grid_constant__ GradientCall g, Marked marked, std::int64_t blocks) {
  __shared__ Completion::Shared memory;
  wait_for_prior_launches();
  Completion(g, marked, memory).find_rows(blocks);
}
__global__ void __launch_bounds__(gradient_threads)
    decide_classes(const __grid_constant__ GradientCall g, Marked marked, std::int64_t blocks) {
  __shared__ Completion::Shared memory;
  wait_for_prior_launches();
  Completion(g, marked, memory).decide_classes(blocks);
}
__global__ void __launch_bounds__(gradient_threads)
    complete(const __grid_constant__ GradientCall g, Marked marked, std::int64_t blocks) {
  __shared__ Completion::Shared memory;
  wait_for_prior_launches();
  Completion(g, marked, memory).add_sums(blocks);
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
    prepare_for(g)<<<blocks_for(g.all_rows(), gradient_threads), gradient_threads, 0, stream>>>(g);
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

void launch_completion(const GradientCall& g, Marked marked, Stream stream) {
  const Completion::Parts of = Completion::parts(g);
  const auto launch = [&](auto* kernel, std::int64_t parts) {
    const std::int64_t blocks = std::min<std::int64_t>(parts, 4 * device_facts().multiprocessors);
    if (blocks > 0)
      launch_early(kernel, {static_cast<unsigned>(blocks), gradient_threads}, stream, g, marked, blocks);
  };
  constexpr std::int64_t warps = Completion::warps;
  const std::int64_t rows = std::max((of.rows + warps - 1) / warps, (of.keys + warps - 1) / warps);
  launch(find_double_rows, rows);
  launch(decide_classes, of.classes);
  launch(complete, std::max({rows, of.biases, g.sink.elements()}));
}

}  // namespace heed::cuda
