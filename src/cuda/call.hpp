// SPDX-License-Identifier: Apache-2.0
// A Problem as the CUDA kernels read it: plain data, passed by value at a launch. Everything it points to
// lies on the device.
#pragma once
#include "problem/call.hpp"

namespace heed::cuda {

using problem::BoolTensor, problem::Tensor, problem::TensorStrides, problem::Type;

// Its `sequences` are null where all batch entries are alike.
struct Call : problem::KernelCall {
  bool cuts_some = false;  // where they differ: prefill cuts the keys of one, or more (prefill/plan.hpp)
  Sequence each{};         // what they are alike
  // The exact kernels keep scores in a unit of their own; a difference of so much is -127 in base 2.
  float min_exponent = 0;
  float scale_log2e = 0, softcap_log2e = 0;  // the scale and the softcap in base 2
  float scale_over_softcap = 0;              // what tanh gets of a product, finite; 0: no softcap
  // Where documents are runs of keys, and the kernel asks for it: the first keys of those of entry b are
  // run_starts[run_offsets[2 b]] up to run_offsets[2 b + 1]. Else null.
  const std::int32_t *run_starts = nullptr, *run_offsets = nullptr;

  constexpr const Sequence& sequence(std::int64_t b) const { return sequences ? sequences[b] : each; }
};

// A gradient that broadcasts, in extents of its own.
struct SharedGradient {
  Tensor tensor{};  // a stride of 0 along every axis of extent 1; data is null where it was not asked for
  std::int64_t batch = 0, heads = 0, length = 0, dim = 0;

  constexpr std::int64_t elements() const { return tensor.data ? batch * heads * length * dim : 0; }
};

// What the rows of q have to themselves in a backward pass, and what could not be finished in f32. All lie in
// the workspace, by the numbers that GradientCall gives rows of q, and rows of k and v.
struct GradientRows {
  float*
      log_sum_exp;  // in base 2; +inf for a row that gives nothing to anybody, NaN for one that is no number
  float* rest;      // what a float does not hold of that
  float* delta;     // dO times out, less the gradient of the log-sum-exp
  // What is marked with a bit is computed in double precision (S13). Of what a kernel has written there
  // finite numbers count, if it writes what it marks (Marked). Rows have a mark for every slab of dimensions.
  std::uint32_t *unfinished_q, *unfinished_k, *unfinished_v;
  std::uint32_t *unfinished_bias, *unfinished_sink;  // by element, row after row
  unsigned* any_unfinished;                          // 1 where anything is marked
};

// attention_backward() as the CUDA kernels read it.
struct GradientCall {
  static constexpr std::int64_t slab_dims = 64;
  static constexpr std::int64_t slabs(std::int64_t dim) { return (dim + slab_dims - 1) / slab_dims; }

  Call forward{};  // out and log_sum_exp are what was saved; scores are in base 2
  Tensor out_gradient{}, log_sum_exp_gradient{};
  Tensor q{}, k{}, v{};  // written through; data is null where it was not asked for
  SharedGradient bias{}, sink{};
  float scale = 1;
  bool accumulates = false;
  bool shares_query_rows = false,
       shares_key_rows = false;               // of a packed call: its sequences lie in one entry
  std::int64_t query_rows = 0, key_rows = 0;  // of a head of q, and of k
  GradientRows rows{};

  constexpr std::int64_t all_rows() const {
    return (shares_query_rows ? 1 : forward.batch) * forward.heads * query_rows;
  }
  constexpr std::int64_t all_keys() const {
    return (shares_key_rows ? 1 : forward.batch) * forward.kv_heads * key_rows;
  }
  // Of row `row` of a head of q, and of k: where a packed sequence begins at its first.
  constexpr std::int64_t row(std::int64_t b, std::int64_t head, std::int64_t row) const {
    return ((shares_query_rows ? 0 : b) * forward.heads + head) * query_rows + row;
  }
  constexpr std::int64_t key(std::int64_t b, std::int64_t kv_head, std::int64_t row) const {
    return ((shares_key_rows ? 0 : b) * forward.kv_heads + kv_head) * key_rows + row;
  }
};

using softmax::block_keys, softmax::chain_keys, softmax::chain_terms, softmax::chunk_keys;

}  // namespace heed::cuda
