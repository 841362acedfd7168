// SPDX-License-Identifier: Apache-2.0
// A Problem as the CUDA kernels read it: plain data, passed by value at a launch. Everything it points to
// lies on the device.
#pragma once
#include "problem/call.hpp"

namespace heed::cuda {

using problem::BoolTensor, problem::Tensor, problem::TensorStrides, problem::Type;

// Its `sequences` are null where all batch entries are alike.
struct Call : problem::KernelCall {
  Sequence each{};  // what they are alike
  // The exact kernels keep scores in a unit of their own; a difference of so much is -127 in base 2.
  float min_exponent = 0;
  float scale_log2e = 0, softcap_log2e = 0;  // the scale and the softcap in base 2
  // Where documents are runs of keys, and the kernel asks for it: the first keys of those of entry b are
  // run_starts[run_offsets[2 b]] up to run_offsets[2 b + 1]. Else null.
  const std::int32_t *run_starts = nullptr, *run_offsets = nullptr;

  constexpr const Sequence& sequence(std::int64_t b) const { return sequences ? sequences[b] : each; }
};

using softmax::block_keys, softmax::chain_keys, softmax::chain_terms, softmax::chunk_keys;

}  // namespace heed::cuda
