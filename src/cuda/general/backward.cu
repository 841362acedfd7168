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
  const auto plan = BackwardPlan::of<Shape>(g);
  const std::int64_t blocks = plan.tiles * g.forward.batch * g.forward.kv_heads;
  if (blocks == 0) return;
  const auto kernel = differentiate<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<Shape>),
        "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(blocks), Shape::threads, shared_bytes<Shape>, stream>>>(g, plan);
  check(cudaGetLastError(), "cuda.general: gradients");
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
  using Ranges = BackwardShapes<dim, PairStage::ranges>;
  using Every = BackwardShapes<dim, PairStage::every_option>;
  const auto run = [&]<class Shape> { launch<Shape>(g, stream); };
  if (has_only_ranges(g.forward) && g.forward.drop_below == 0 && fit_here<Ranges>())
    for_each_shape<Ranges>(g, run);
  else
    for_each_shape<Every>(g, run);
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
  if (dim > 128 && !fit_here<BackwardShapes<256, PairStage::every_option>>())
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
