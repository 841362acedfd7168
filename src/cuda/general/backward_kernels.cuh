// SPDX-License-Identifier: Apache-2.0
// The general kernels of a backward pass and their launches: those of a type and a width of heads, which
// CMake writes a file for.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/backward/backward.hpp"
#include "cuda/general/backward.cuh"
#include "cuda/general/kernel.cuh"
#include "cuda/general/one_pass.cuh"
#include "cuda/general/plan.hpp"

namespace heed::cuda::general {

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::dim > 128 ? 1 : 2)
    differentiate(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
#ifdef __CUDA_ARCH__
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = Backward<Shape>;
  if constexpr (fits_architecture<typename Kernel::Shared>(__CUDA_ARCH__))
    Kernel(g, plan, *reinterpret_cast<typename Kernel::Shared*>(memory)).run();
#endif
}

template <class Shape>
constexpr int shared_bytes = sizeof(BackwardMemory<Shape>);

template <class Shape>
void launch(const GradientCall& g, Stream stream) {
  const auto plan = BackwardPlan::of<Shape>(g);
  const std::int64_t blocks = plan.tiles * g.forward.batch * g.forward.kv_heads;
  if (blocks == 0) return;
  const auto kernel = differentiate<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<Shape>),
        "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(blocks), Shape::threads, shared_bytes<Shape>, stream>>>(g, plan);
  check(cudaGetLastError(), "cuda.general: gradients");
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    differentiate_in_one_pass(const __grid_constant__ GradientCall g, const __grid_constant__ OnePassPlan plan) {
#ifdef __CUDA_ARCH__
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = OnePass<Shape>;
  if constexpr (fits_architecture<typename Kernel::Shared>(__CUDA_ARCH__))
    Kernel(g, plan, *reinterpret_cast<typename Kernel::Shared*>(memory)).run(gridDim.x);
#endif
}
template <class Shape>
__global__ void __launch_bounds__(Shape::threads)
    write_queries_of_one_pass(const __grid_constant__ GradientCall g, const __grid_constant__ OnePassPlan plan) {
  __shared__ typename OnePassQueries<Shape>::Unfinished unfinished;
  OnePassQueries<Shape>::run(g, plan, unfinished);
}

// Of a plan that has its memory.
template <class Shape>
void launch_one_pass(const GradientCall& g, const OnePassPlan& plan, Stream stream) {
  const auto blocks = static_cast<unsigned>(plan.blocks());
  if (blocks == 0) return;
  constexpr int bytes = sizeof(OnePassMemory<Shape>);
  const auto kernel = differentiate_in_one_pass<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
  if (plan.adds)
    check(cudaMemsetAsync(plan.adds, 0, static_cast<std::size_t>(plan.add_bytes()), stream),
          "cudaMemsetAsync");
  kernel<<<blocks, Shape::threads, bytes, stream>>>(g, plan);
  check(cudaGetLastError(), "cuda.general: gradients");
  if (!plan.adds) return;
  write_queries_of_one_pass<Shape>
      <<<static_cast<unsigned>(plan.tiles()), Shape::threads, 0, stream>>>(g, plan);
  check(cudaGetLastError(), "cuda.general: dQ");
}

template <class Shapes>
constexpr int max_shared_bytes() {
  if constexpr (requires { typename Shapes::Kv; })
    return std::max(shared_bytes<typename Shapes::Q>, shared_bytes<typename Shapes::Kv>);
  else
    return std::max({shared_bytes<typename Shapes::Q>, shared_bytes<typename Shapes::K>,
                     shared_bytes<typename Shapes::V>});
}
template <class Shapes>
bool fit_on_device() {
  return device_facts().fits_block(static_cast<std::size_t>(max_shared_bytes<Shapes>()));
}

template <class Shapes>
void launch_shapes(const GradientCall& g, Stream stream) {
  for_each_shape<Shapes>(g, [&]<class Shape> { launch<Shape>(g, stream); });
}

// Calls run.operator()<Shape>() with the shape of one pass that the device has room for; returns false where
// there is none.
template <Type type, int dim, class Run>
bool run_in_one_pass(const GradientCall& g, const MaskTiles& mask, const Run& run) {
  if (!has_one_pass(g, mask)) return false;
  const auto run_stage = [&]<PairStage stage> {
    using Shape = typename OnePassShapes<type, dim, stage>::Shape;
    if (!device_facts().fits_block(sizeof(OnePassMemory<Shape>))) return false;
    run.template operator()<Shape>();
    return true;
  };
  return stage_of(g.forward) == PairStage::ranges ? run_stage.template operator()<PairStage::ranges>()
                                                  : run_stage.template operator()<PairStage::every_option>();
}

// For heads of up to `dim` dimensions: in one pass, or the largest shapes that the device has room for. `mask`
// has no words yet; they and sums of dQ go into this memory.
template <Type type, int dim>
void launch_backward(const GradientCall& g, const MaskTiles& mask, const Workspace& memory, Stream stream) {
  const bool is_done = run_in_one_pass<type, dim>(g, mask, [&]<class Shape> {
    auto plan = OnePassPlan::of<Shape>(g, device_facts().multiprocessors);
    plan.take(memory.counters(), memory.rest());
    plan.mask = packed(g.forward, mask, memory.rest() + plan.template bytes<Shape>(), stream);
    if (!g.q.data) plan.adds = nullptr;
    launch_one_pass<Shape>(g, plan, stream);
  });
  if (is_done) return;
  using Ranges = BackwardShapes<type, dim, PairStage::ranges>;
  using Every = BackwardShapes<type, dim, PairStage::every_option>;
  const bool has_ranges = has_only_ranges(g.forward) && g.forward.drop_below == 0;
  if constexpr (requires { typename Ranges::Larger; })
    if (fit_on_device<typename Ranges::Larger>())
      return has_ranges ? launch_shapes<typename Ranges::Larger>(g, stream)
                        : launch_shapes<typename Every::Larger>(g, stream);
  has_ranges&& fit_on_device<Ranges>() ? launch_shapes<Ranges>(g, stream) : launch_shapes<Every>(g, stream);
}

}  // namespace heed::cuda::general
