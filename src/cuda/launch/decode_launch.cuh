// SPDX-License-Identifier: Apache-2.0
// The launch of decode for one head size; each has a file of its own, because they take long to compile.
#pragma once
#include <cuda_runtime.h>

#include "cuda/algorithm/decode.cuh"
#include "cuda/launch/launch.hpp"

namespace heed::cuda {

void launch_decode_64(const Call&, const DecodePlan&, Stream);
void launch_decode_128(const Call&, const DecodePlan&, Stream);

template <class Shape>
__global__ void __launch_bounds__(decode_threads, 1)
    decode_kernel(const __grid_constant__ Call c, const __grid_constant__ DecodePlan plan) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Kernel = Decode<Shape>;
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  if (Kernel::lets_next_begin_early(plan)) let_next_launch_begin();
  if constexpr (Shape::many) Kernel::prepare(c, plan, shared);
  // Lists of sequences and pages come by way of the stream.
  if (c.sequences || c.cached) wait_for_launches_before();
  Kernel(c, plan, shared).run();
  wait_for_launches_before();  // a block that has nothing to do, too
}

template <class Shape>
void launch_decode_shape(const Call& c, const DecodePlan& plan, Stream stream) {
  constexpr int shared = sizeof(typename Decode<Shape>::Shared);
  static_assert(shared <= 232448);
  const auto kernel = decode_kernel<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "cudaFuncSetAttribute");
  const dim3 blocks(static_cast<unsigned>(c.batch * c.kv_heads), static_cast<unsigned>(plan.splits));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = attributes[1].val.clusterDim.z = 1;
  attributes[1].val.clusterDim.y = plan.is_paired ? 2 : 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = dim3(decode_threads), config.dynamicSmemBytes = shared;
  config.stream = stream, config.attrs = attributes, config.numAttrs = plan.is_paired ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, c, plan), "cuda.decode");
}

template <int dim, Type type>
void launch_decode_type(const Call& c, const DecodePlan& plan, Stream stream) {
  const bool many = has_many_rows(c);
  if (c.cached)
    many ? launch_decode_shape<DecodeShape<dim, type, true, true>>(c, plan, stream)
         : launch_decode_shape<DecodeShape<dim, type, false, true>>(c, plan, stream);
  else
    many ? launch_decode_shape<DecodeShape<dim, type, true, false>>(c, plan, stream)
         : launch_decode_shape<DecodeShape<dim, type, false, false>>(c, plan, stream);
}

template <int dim>
void launch_decode_dim(const Call& c, const DecodePlan& plan, Stream stream) {
  c.q.type == Type::bf16 ? launch_decode_type<dim, Type::bf16>(c, plan, stream)
                         : launch_decode_type<dim, Type::f16>(c, plan, stream);
}

}  // namespace heed::cuda
