// SPDX-License-Identifier: Apache-2.0
// Which backward passes the exact kernels take, and their launches: dQ, dK and dV, and the bias.
#include <cuda_runtime.h>

#include "cuda/backward/backward.hpp"
#include "cuda/exact/backward.cuh"
#include "cuda/exact/bias_gradient.cuh"
#include "cuda/exact/plan.hpp"
#include "cuda/runtime/launch_early.cuh"

namespace heed::cuda {
namespace {

__global__ void __launch_bounds__(pair_threads, 3)
    differentiate_keys(const __grid_constant__ GradientCall g, const __grid_constant__ ExactPart part) {
  extern __shared__ __align__(16) unsigned char memory[];
  PairOptions options;
  launch_dependents();
  ExactKeyGradients(g, part, *reinterpret_cast<PairsShared*>(memory), options).run();
}

__global__ void __launch_bounds__(pair_threads, 3)
    differentiate_rows(const __grid_constant__ GradientCall g, const __grid_constant__ ExactPart part) {
  extern __shared__ __align__(16) unsigned char memory[];
  ExactRowGradients(g, part, *reinterpret_cast<ExactRowGradients::Shared*>(memory)).run();
  wait_for_prior_launches();  // the launch after this one begins when this one has ended
}

__global__ void __launch_bounds__(pair_threads, 2)
    differentiate_bias(const __grid_constant__ GradientCall g) {
  extern __shared__ __align__(16) unsigned char memory[];
  PairOptions options;
  ExactBiasGradient(g, *reinterpret_cast<ExactBiasGradient::Shared*>(memory), options).run();
}

// Beside: it takes the places that the last blocks of the launch before it leave empty.
template <class... Parameters>
void launch(ExactParts::Beside beside, void (*kernel)(Parameters...), std::int64_t blocks, std::size_t shared,
            Stream stream, const std::type_identity_t<Parameters>&... arguments) {
  if (blocks == 0) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "cudaFuncSetAttribute");
  const dim3 grid(static_cast<unsigned>(blocks));
  if (beside == ExactParts::Beside::the_next_part)
    return launch_early(kernel, {grid, pair_threads, shared}, stream, arguments...);
  kernel<<<grid, pair_threads, shared, stream>>>(arguments...);
  check(cudaGetLastError(), "cuda.exact: gradients");
}

// Three blocks of threads fit one multiprocessor of 228 KB.
ExactParts parts_of(const GradientCall& g) { return ExactParts(g, 3 * device_facts().multiprocessors); }

}  // namespace

const char* exact_backward_refuses(const GradientCall& g) {
  if (g.forward.cap != 0 && g.forward.cap < 0x1p-126f) return "it takes a softcap of at least 2^-126";
  return exact_refuses(g.forward);
}

std::int64_t exact_backward_bytes(const GradientCall& g) { return parts_of(g).bytes(); }

void launch_exact_backward(const GradientCall& g, const Workspace& workspace, Stream stream) {
  using Beside = ExactParts::Beside;
  if (g.q.data || g.k.data || g.v.data)
    parts_of(g).run_each(
        reinterpret_cast<float*>(workspace.rest()),
        [&](const ExactPart& part) {
          launch(Beside::nothing, differentiate_keys, ExactKeyGradients::blocks(part), sizeof(PairsShared),
                 stream, g, part);
        },
        [&](const ExactPart& part, Beside beside) {
          launch(beside, differentiate_rows, ExactRowGradients::blocks(g, part),
                 sizeof(ExactRowGradients::Shared), stream, g, part);
        });
  launch_exact_bias_gradient(g, stream);
}

void launch_exact_bias_gradient(const GradientCall& g, Stream stream) {
  if (g.bias.elements() == 0) return;
  launch(ExactParts::Beside::nothing, differentiate_bias, BiasTiles(g).blocks(),
         sizeof(ExactBiasGradient::Shared), stream, g);
}

}  // namespace heed::cuda
