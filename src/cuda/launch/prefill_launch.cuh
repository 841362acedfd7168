// SPDX-License-Identifier: Apache-2.0
// The launch of prefill for one head size; each has a file of its own, because they take long to compile.
#pragma once
#include <cuda_runtime.h>

#include "cuda/algorithm/prefill.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/launch/tensor_map.hpp"

namespace heed::cuda {

// With its memory and numbers of tiles.
void launch_prefill_64(const Call&, const Extents&, PrefillPlan, Stream);
void launch_prefill_128(const Call&, const Extents&, PrefillPlan, Stream);
void launch_prefill_256(const Call&, const Extents&, PrefillPlan, Stream);

template <class Shape, bool capped>
__global__ void __launch_bounds__(Shape::threads, 1)
    prefill_kernel(const __grid_constant__ Call c, const __grid_constant__ PrefillPlan plan) {
  extern __shared__ unsigned char memory[];
  prefill<Shape, capped>(c, plan, memory);
}

template <class Shape, bool capped>
void launch_prefill_shape(const Call& c, const Extents& extents, PrefillPlan plan, Stream stream) {
  plan.q = tensor_map(c.q, {Shape::dim, extents.query_rows, c.heads, c.batch}, Shape::rows);
  plan.k = tensor_map(c.k, {Shape::dim, extents.key_rows, c.kv_heads, c.batch}, Shape::keys);
  plan.v = tensor_map(c.v, {Shape::dim, extents.key_rows, c.kv_heads, c.batch}, Shape::keys);
  plan.out = tensor_map(c.out, {Shape::dim, extents.query_rows, c.heads, c.batch}, 64);
  const auto kernel = prefill_kernel<Shape, capped>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes),
        "cudaFuncSetAttribute");
  const int at_once = device_facts().multiprocessors;
  const int blocks = plan.tiles < at_once ? plan.tiles : at_once;
  kernel<<<static_cast<unsigned>(blocks), Shape::threads, Shape::shared_bytes, stream>>>(c, plan);
  check(cudaGetLastError(), "cuda.prefill");
}

template <int dim>
void launch_prefill_dim(const Call& c, const Extents& extents, const PrefillPlan& plan, Stream stream) {
  const bool capped = c.softcap != 0;
  if (c.q.type == Type::bf16) {
    using Shape = PrefillShape<dim, Type::bf16, prefill_groups(dim)>;
    capped ? launch_prefill_shape<Shape, true>(c, extents, plan, stream)
           : launch_prefill_shape<Shape, false>(c, extents, plan, stream);
  } else {
    using Shape = PrefillShape<dim, Type::f16, prefill_groups(dim)>;
    capped ? launch_prefill_shape<Shape, true>(c, extents, plan, stream)
           : launch_prefill_shape<Shape, false>(c, extents, plan, stream);
  }
}

}  // namespace heed::cuda
