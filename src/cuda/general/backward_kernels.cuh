// SPDX-License-Identifier: Apache-2.0
// The general kernels of a backward pass and their launches: those of a type and a width of heads, which
// CMake writes a file for.
#pragma once
#include <cuda_runtime.h>

#include "cuda/backward/backward.hpp"
#include "cuda/general/backward.cuh"
#include "cuda/general/bias_gradient.cuh"
#include "cuda/general/kernel.cuh"
#include "cuda/runtime/launch_early.cuh"

namespace heed::cuda::general {

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    differentiate(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
#ifdef __CUDA_ARCH__
  extern __shared__ __align__(512) unsigned char memory[];
  using Kernel = Backward<Shape>;
  if constexpr (fits_architecture<typename Kernel::Shared>(__CUDA_ARCH__))
    Kernel(g, plan, *reinterpret_cast<typename Kernel::Shared*>(memory)).run();
#endif
}
template <class Shape>
__global__ void __launch_bounds__(Shape::threads)
    write_queries(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
  __shared__ typename BackwardQueries<Shape>::Unfinished unfinished;
  BackwardQueries<Shape>::run(g, plan, unfinished);
}
template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 2)
    differentiate_bias(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
#ifdef __CUDA_ARCH__
  extern __shared__ __align__(512) unsigned char memory[];
  using Kernel = BiasGradient<Shape>;
  if constexpr (fits_architecture<typename Kernel::Shared>(__CUDA_ARCH__))
    Kernel(g, plan, *reinterpret_cast<typename Kernel::Shared*>(memory)).run();
#endif
}

template <class Kernel>
void allow_shared(const Kernel& kernel, int bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
}

// Of a plan that has its memory.
template <class Shape>
void launch(const GradientCall& g, const BackwardPlan& plan, Stream stream) {
  constexpr int bytes = sizeof(BackwardMemory<Shape>);
  allow_shared(differentiate<Shape>, bytes);
  if (plan.adds)
    check(cudaMemsetAsync(plan.adds, 0, static_cast<std::size_t>(plan.add_bytes()), stream),
          "cudaMemsetAsync");
  launch_prepare(g, Sums::of_warps, stream);
  if (const auto blocks = static_cast<unsigned>(plan.blocks()); blocks > 0)
    launch_early(differentiate<Shape>, {blocks, Shape::threads, bytes}, stream, g, plan);
  if (!plan.adds || plan.tiles() == 0) return;  // where there are no keys, dQ is 0
  launch_early(write_queries<Shape>, {static_cast<unsigned>(plan.tiles()), Shape::threads}, stream, g, plan);
}
template <class Shape>
void launch_bias(const GradientCall& g, const BackwardPlan& plan, Stream stream) {
  constexpr int bytes = sizeof(BiasMemory<Shape>);
  allow_shared(differentiate_bias<Shape>, bytes);
  const auto blocks = static_cast<unsigned>(bias_tiles<Shape>(g));
  if (blocks == 0) return;
  differentiate_bias<Shape><<<blocks, Shape::threads, bytes, stream>>>(g, plan);
  check(cudaGetLastError(), "cuda.general: bias");
}

// Calls run.operator()<Shape>() with the largest shape that the device has room for; returns false where
// there is none.
template <Type type, int dim, class Run>
bool run_largest(const GradientCall& g, const Run& run) {
  const auto run_shape = [&]<class Shape> {
    if (!device_facts().fits_block(sizeof(BackwardMemory<Shape>))) return false;
    run.template operator()<Shape>();
    return true;
  };
  const auto run_stage = [&]<PairStage stage> {
    using Of = GradientTiles<dim, stage>;
    return run_shape.template operator()<BackwardShape<type, dim, stage, typename Of::Larger>>() ||
           run_shape.template operator()<BackwardShape<type, dim, stage, typename Of::Smaller>>();
  };
  return stage_of(g.forward) == PairStage::ranges ? run_stage.template operator()<PairStage::ranges>()
                                                  : run_stage.template operator()<PairStage::every_option>();
}

// For heads of up to `dim` dimensions. `mask` has no words yet; they and sums of dQ go into this memory.
template <Type type, int dim>
void launch_backward(const GradientCall& g, const MaskTiles& mask, const Workspace& memory, Stream stream) {
  run_largest<type, dim>(g, [&]<class Shape> {
    auto plan = BackwardPlan::of<Shape>(g, device_facts().multiprocessors);
    plan.take(memory.counters(), memory.rest());
    plan.mask = is_packed(mask)
                    ? packed(g.forward, mask, memory.rest() + plan.template bytes<Shape>(), stream)
                    : mask;
    if (!g.q.data) plan.adds = nullptr;
    if (g.q.data || g.k.data || g.v.data)
      launch<Shape>(g, plan, stream);
    else
      launch_prepare(g, Sums::of_warps, stream);
    if constexpr (Shape::stage == PairStage::every_option)
      if (has_bias_kernel(g)) launch_bias<BiasShape<type, dim>>(g, plan, stream);
  });
}

}  // namespace heed::cuda::general
