// SPDX-License-Identifier: Apache-2.0
// The backward pass by Hopper's matrix units, bf16 and f16 in, f32 sums. Every kernel takes ranges of keys
// (Causal, Window, KeyLengths) and sinks; BackwardKind says what there is besides. Three launches: rows are
// prepared, all products are made, and dQ is written.
#pragma once
#include <cuda_runtime.h>

#include "cuda/backward/hopper/bias.cuh"
#include "cuda/backward/hopper/consumer.cuh"
#include "cuda/backward/hopper/producer.cuh"
#include "cuda/backward/hopper/rows.cuh"
#include "cuda/backward/hopper/wide.cuh"
#include "cuda/runtime/launch_early.cuh"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    backward_kernel(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
  extern __shared__ unsigned char memory[];
  const BackwardShared<Shape> shared(memory);
  if (thread_index() == 0) {
    shared.init();
    prefetch_map(&plan.q), prefetch_map(&plan.k), prefetch_map(&plan.v), prefetch_map(&plan.out_gradient);
    if (Shape::biased) prefetch_map(&plan.bias);
  }
  sync();
  wait_for_prior_launches();
  launch_dependents();  // which find no number of a tile from an earlier call
  if (thread_index() < 128) {
    lower_registers<Shape::producer_registers>();
    const int warp = uniform(thread_index() / 32);
    if (warp == 0 && elect_one())
      BackwardLoader<Shape>(g, plan, shared).run();
    else if ((warp == 1 || warp == 2) && elect_one())
      BackwardAdder<Shape>(g, plan, shared, static_cast<unsigned>(warp - 1)).run();
    else if (Shape::biased && warp == 3)
      BackwardZeros<Shape>(g, plan, shared).run();
  } else {
    raise_registers<Shape::consumer_registers>();
    BackwardConsumer<Shape>(g, plan, shared).run();
  }
}

template <class Shape>
__global__ void __launch_bounds__(BackwardQueries<Shape>::threads)
    backward_queries_kernel(const __grid_constant__ GradientCall g,
                            const __grid_constant__ BackwardPlan plan) {
  BackwardQueries<Shape>{g, plan}.run();
}

template <class Shape>
void launch_backward_shape(const GradientCall& g, BackwardPlan plan, Stream stream) {
  const Call& c = g.forward;
  plan.q = tensor_map(c.q, {c.dim, g.query_rows, c.heads, c.batch}, Shape::rows);
  plan.out_gradient = tensor_map(g.out_gradient, {c.value_dim, g.query_rows, c.heads, c.batch}, Shape::rows);
  plan.k = tensor_map(c.k, {c.dim, g.key_rows, c.kv_heads, c.batch}, Shape::keys);
  plan.v = tensor_map(c.v, {c.value_dim, g.key_rows, c.kv_heads, c.batch}, Shape::keys);
  if (Shape::biased) plan.bias = tensor_map(c.bias, {c.keys, g.query_rows, c.heads, c.batch}, Shape::rows);
  if (plan.bias_gradient == BiasGradient::of_products)
    plan.to_bias = tensor_map(g.bias.tensor, {c.keys, c.queries, c.heads, c.batch}, Shape::rows);
  plan.query_policy = plan.streams_queries ? evict_first : evict_last;
  plan.sum_policy = plan.streams_queries ? evict_last : evict_normal;
  plan.copies_gradients = Shape::copies && are_copied(g);
  if (plan.copies_gradients) {
    plan.to_k = tensor_map(g.k, {c.dim, g.key_rows, c.kv_heads, c.batch}, 64);
    plan.to_v = tensor_map(g.v, {c.value_dim, g.key_rows, c.kv_heads, c.batch}, 64);
  }
  launch_backward_rows<Shape>(g, plan, stream);
  const auto kernel = backward_kernel<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes),
        "cudaFuncSetAttribute");
  const int at_once = device_facts().multiprocessors;
  const int blocks = plan.tiles < at_once ? plan.tiles : at_once;
  launch_early(kernel, {static_cast<unsigned>(blocks), Shape::threads, Shape::shared_bytes}, stream, g, plan);
  if (!g.q.data && plan.bias_gradient != BiasGradient::of_products) return;
  const auto tiles = static_cast<unsigned>(plan.of_queries.heads * plan.of_queries.tiles);
  launch_early(backward_queries_kernel<Shape>, {tiles, BackwardQueries<Shape>::threads}, stream, g, plan);
}

template <int dim, Type type, BackwardKind kind>
void launch_backward_kind(const GradientCall& g, const BackwardPlan& plan, Stream stream) {
  // A kernel more where both are worth their size.
  if constexpr (dim == 128 && kind == BackwardKind::plain) {
    if (plan.tiles_are_short)
      launch_backward_shape<BackwardShape<dim, type, kind, true>>(g, plan, stream);
    else
      launch_backward_shape<BackwardShape<dim, type, kind, false>>(g, plan, stream);
  } else {
    launch_backward_shape<BackwardShape<dim, type, kind>>(g, plan, stream);
  }
  if constexpr (kind == BackwardKind::biased)
    if (plan.bias_gradient == BiasGradient::of_tiles) launch_bias_gradient<dim, type>(g, plan, stream);
}

}  // namespace heed::cuda
