// SPDX-License-Identifier: Apache-2.0
// Prefill: attention for many rows by Hopper's matrix units, bf16 and f16 in, f32 sums. Every kernel takes
// ranges of keys (Causal, Window, KeyLengths), sink and log-sum-exp; PrefillKind says what there is besides.
// A block has a producer thread, which loads queries, keys and values by the copy engine, and two or three
// warpgroups of consumers.
#pragma once
#include <cuda_runtime.h>

#include "cuda/prefill/consumer.cuh"
#include "cuda/prefill/launch.hpp"
#include "cuda/prefill/producer.cuh"
#include "cuda/runtime/launch_early.cuh"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    prefill_kernel(const __grid_constant__ Call c, const __grid_constant__ PrefillPlan plan) {
  extern __shared__ unsigned char memory[];
  const PrefillShared<Shape> shared(memory);
  if constexpr (Shape::cut) launch_dependents();  // states are merged
  if (thread_index() == 0) {
    shared.init();
    prefetch_map(&plan.q), prefetch_map(&plan.k), prefetch_map(&plan.v), prefetch_map(&plan.out);
    if (Shape::biased) prefetch_map(&plan.bias);
  }
  sync();
  if (thread_index() < 128) {
    lower_registers<Shape::producer_registers>();
    if (thread_index() < 32 && elect_one()) PrefillProducer<Shape>(c, plan, shared).run();
  } else {
    raise_registers<Shape::consumer_registers>();
    PrefillConsumer<Shape>(c, plan, shared).run();
  }
}

// Of keys or of values: in rows, or as in pages.
template <class Shape>
CUtensorMap keys_map(const Tensor& t, std::int64_t dim, const Call& c, const Extents& extents) {
  if constexpr (Shape::paged)
    return tensor_map_of_sixteens(t, {dim, c.layout.page_size / 16, extents.key_rows, Shape::dim});
  const std::int64_t heads = (c.k.stride.batch == 0 ? 1 : c.batch) * c.kv_heads;
  if constexpr (Shape::scaled)
    return tensor_map_of_sixteens(t, {dim, heads * extents.key_rows / 16, 1, Shape::dim});
  return tensor_map(t, {dim, extents.key_rows, c.kv_heads, c.batch}, Shape::keys);
}

template <class Shape>
void launch_prefill_shape(const Call& c, const Extents& extents, PrefillPlan plan, Stream stream) {
  plan.q = tensor_map(c.q, {c.dim, extents.query_rows, c.heads, c.batch}, Shape::rows / plan.tile_heads);
  plan.out = tensor_map(c.out, {c.value_dim, extents.query_rows, c.heads, c.batch}, 64);
  plan.k = keys_map<Shape>(c.k, c.dim, c, extents);
  plan.v = Shape::paged
               ? keys_map<Shape>(c.k, c.layout.value_width(), c, extents)
               : keys_map<Shape>(c.v, Shape::scaled ? c.layout.value_width() : c.value_dim, c, extents);
  if (Shape::biased)
    plan.bias = tensor_map(c.bias, {c.keys, extents.query_rows, c.heads, c.batch}, Shape::rows);
  const auto kernel = prefill_kernel<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes),
        "cudaFuncSetAttribute");
  const int at_once = device_facts().multiprocessors;
  const int blocks = plan.tiles < at_once ? plan.tiles : at_once;
  const Grid grid{static_cast<unsigned>(blocks), Shape::threads, Shape::shared_bytes};
  if constexpr (Shape::cut || Shape::in_sixteens) return launch_early(kernel, grid, stream, c, plan);
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(c, plan);
  check(cudaGetLastError(), "cuda.prefill");
}

template <int dim, int value_dim, Type type, PrefillKind kind>
void launch_prefill_kind(const Call& c, const Extents& extents, const PrefillPlan& plan, Stream stream) {
  if constexpr (may_be_bounded(kind, type))
    if (is_bounded(c))
      return launch_prefill_shape<PrefillShape<dim, value_dim, type, kind, true>>(c, extents, plan, stream);
  launch_prefill_shape<PrefillShape<dim, value_dim, type, kind>>(c, extents, plan, stream);
}

}  // namespace heed::cuda
