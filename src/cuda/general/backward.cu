// SPDX-License-Identifier: Apache-2.0
// Which backward passes the general kernels take, which of their shapes a call goes to on the current device,
// and the launches: dK and dV, dQ, the bias.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/backward/backward.hpp"
#include "cuda/general/backward.cuh"
#include "cuda/general/kernel.cuh"
#include "cuda/general/plan.hpp"

namespace heed::cuda {
namespace general {
namespace {

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
  const Call& c = g.forward;
  const std::int64_t items = Shape::owned == Owned::rows ? c.queries * c.group() : c.keys,
                     tiles = (items + Shape::items - 1) / Shape::items, blocks = tiles * c.batch * c.kv_heads;
  if (blocks == 0) return;
  const BackwardPlan plan{static_cast<int>(tiles), lies_in_16(c.q, c.dim), lies_in_16(c.k, c.dim),
                          lies_in_16(c.v, c.value_dim), lies_in_16(g.out_gradient, c.value_dim)};
  const auto kernel = differentiate<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<Shape>),
        "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(blocks), Shape::threads, shared_bytes<Shape>, stream>>>(g, plan);
  check(cudaGetLastError(), "cuda.general: gradients");
}

// Owned items of a warp and walked ones of a tile are what registers hold: sums of 128 floats in each thread,
// and pairs of 64.
template <int dim, PairStage stage>
struct Shapes;
template <>
struct Shapes<64, PairStage::ranges> {
  using Q = BackwardShape<of_q, 64, 2, 64, PairStage::ranges>;
  using Kv = BackwardShape<of_k | of_v, 64, 2, 32, PairStage::ranges>;
};
template <>
struct Shapes<64, PairStage::every_option> {
  using Q = BackwardShape<of_q, 64, 2, 32, PairStage::every_option>;
  using Kv = BackwardShape<of_k | of_v, 64, 2, 32, PairStage::every_option>;
};
template <>
struct Shapes<128, PairStage::ranges> {
  using Q = BackwardShape<of_q, 128, 2, 32, PairStage::ranges>;
  using Kv = BackwardShape<of_k | of_v, 128, 1, 64, PairStage::ranges>;
};
template <>
struct Shapes<128, PairStage::every_option> {
  using Q = BackwardShape<of_q, 128, 1, 32, PairStage::every_option>;
  using Kv = BackwardShape<of_k | of_v, 128, 1, 32, PairStage::every_option>;
};
// No room for the sums of both: keys are walked twice.
template <PairStage stage>
struct Shapes<256, stage> {
  using Q = BackwardShape<of_q, 256, 1, 32, stage>;
  using K = BackwardShape<of_k, 256, 1, 32, stage>;
  using V = BackwardShape<of_v, 256, 1, 32, stage>;
};

template <class AllShapes>
void launch_all(const GradientCall& g, Stream stream) {
  if constexpr (requires { typename AllShapes::Kv; }) {
    if (g.k.data || g.v.data) launch<typename AllShapes::Kv>(g, stream);
  } else {
    if (g.k.data) launch<typename AllShapes::K>(g, stream);
    if (g.v.data) launch<typename AllShapes::V>(g, stream);
  }
  if (g.q.data) launch<typename AllShapes::Q>(g, stream);
}

template <class AllShapes>
constexpr int max_shared_bytes() {
  if constexpr (requires { typename AllShapes::Kv; })
    return std::max(shared_bytes<typename AllShapes::Q>, shared_bytes<typename AllShapes::Kv>);
  else
    return std::max({shared_bytes<typename AllShapes::Q>, shared_bytes<typename AllShapes::K>,
                     shared_bytes<typename AllShapes::V>});
}
template <class AllShapes>
bool fit_here() {
  return device_facts().fits_block(static_cast<std::size_t>(max_shared_bytes<AllShapes>()));
}

template <int dim>
void launch_dim(const GradientCall& g, Stream stream) {
  using Ranges = Shapes<dim, PairStage::ranges>;
  using Every = Shapes<dim, PairStage::every_option>;
  if (has_only_ranges(g.forward) && g.forward.drop_below == 0 && fit_here<Ranges>())
    launch_all<Ranges>(g, stream);
  else
    launch_all<Every>(g, stream);
}

}  // namespace
}  // namespace general

const char* general_backward_refuses(const GradientCall& g) {
  using namespace general;
  const Call& c = g.forward;
  const std::int64_t dim = std::max(c.dim, c.value_dim);
  if (c.q.type != Type::bf16 || c.k.type != Type::bf16 || c.v.type != Type::bf16)
    return "it takes q, k and v in bf16";
  if (g.out_gradient.type != Type::bf16) return "it takes the gradient of out in bf16";
  if (dim > 256) return "it takes heads of up to 256 dimensions";
  if (dim > 128 && !fit_here<Shapes<256, PairStage::every_option>>())
    return "on this device it takes heads of up to 128 dimensions";
  if (c.cap != 0 && c.cap < 0x1p-126f) return "it takes a softcap of at least 2^-126";
  return general_refuses(c);
}

void launch_general_backward(const GradientCall& g, const Workspace&, Stream stream) {
  using namespace general;
  const std::int64_t dim = std::max(g.forward.dim, g.forward.value_dim);
  if (dim <= 64)
    launch_dim<64>(g, stream);
  else if (dim <= 128)
    launch_dim<128>(g, stream);
  else
    launch_dim<256>(g, stream);
  launch_exact_bias_gradient(g, stream);
}

}  // namespace heed::cuda
