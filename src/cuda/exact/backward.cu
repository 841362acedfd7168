// SPDX-License-Identifier: Apache-2.0
// Which backward passes the exact kernels take, and their launches: dK and dV, dQ, the bias.
#include <cuda_runtime.h>

#include "cuda/backward/backward.hpp"
#include "cuda/exact/backward.cuh"
#include "cuda/exact/bias_gradient.cuh"
#include "cuda/exact/plan.hpp"

namespace heed::cuda {
namespace {

template <class Kernel>
__global__ void __launch_bounds__(pair_threads, 2) differentiate(const __grid_constant__ GradientCall g) {
  extern __shared__ __align__(16) unsigned char memory[];
  Kernel(g, *reinterpret_cast<typename Kernel::Shared*>(memory)).run();
}

template <class Kernel>
void launch(const GradientCall& g, std::int64_t blocks, Stream stream) {
  if (blocks == 0) return;
  constexpr int shared = sizeof(typename Kernel::Shared);
  const auto kernel = differentiate<Kernel>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(blocks), pair_threads, shared, stream>>>(g);
  check(cudaGetLastError(), "cuda.exact: gradients");
}

template <bool in_place>
void launch(const GradientCall& g, Stream stream) {
  using OfKeys = ExactBackward<Owned::keys, in_place>;
  using OfRows = ExactBackward<Owned::rows, in_place>;
  const std::int64_t heads = g.forward.batch * g.forward.kv_heads;
  if (g.k.data || g.v.data) launch<OfKeys>(g, heads * OfKeys::slabs(g) * OfKeys::tiles(g), stream);
  if (g.q.data) launch<OfRows>(g, heads * OfRows::slabs(g) * OfRows::tiles(g), stream);
}

bool lies_in_place(const GradientCall& g) {
  const Call& c = g.forward;
  return lies_in_fours(c.q) && lies_in_fours(c.k) && lies_in_fours(c.v) && lies_in_fours(g.out_gradient) &&
         c.dim % 4 == 0 && c.value_dim % 4 == 0;
}

}  // namespace

const char* exact_backward_refuses(const GradientCall& g) {
  if (g.forward.cap != 0 && g.forward.cap < 0x1p-126f) return "it takes a softcap of at least 2^-126";
  return exact_refuses(g.forward);
}

void launch_exact_backward(const GradientCall& g, const Workspace&, Stream stream) {
  lies_in_place(g) ? launch<true>(g, stream) : launch<false>(g, stream);
  launch_exact_bias_gradient(g, stream);
}

void launch_exact_bias_gradient(const GradientCall& g, Stream stream) {
  if (g.bias.elements() == 0) return;
  const std::int64_t blocks = BiasTiles(g).blocks();
  lies_in_place(g) ? launch<ExactBiasGradient<true>>(g, blocks, stream)
                   : launch<ExactBiasGradient<false>>(g, blocks, stream);
}

}  // namespace heed::cuda
