// SPDX-License-Identifier: Apache-2.0
// A Problem as the CUDA kernels read it: plain data, passed by value at a launch. Everything it points to
// lies on the device.
#pragma once
#include <cstdint>

#include "cache/layout.hpp"
#include "problem/sequence.hpp"
#include "softmax/scaling.hpp"

namespace heed::cuda {

enum class Type : std::uint8_t { f32, f16, bf16, i8 };  // i8: in a cache, or a boolean

// A tensor over (batch, heads, length, dim), strides in elements; data is null when the tensor was not given.
struct Tensor {
  const void* data = nullptr;
  std::int64_t batch = 0, heads = 0, length = 0, dim = 0;  // strides
  Type type = Type::f32;
};

struct BoolTensor {
  Tensor where;  // i8: 0 or not
  bool visible_when = true;
  bool is_tree = false;  // column 0 is the first of a sequence's last `queries` keys
};

struct Call {
  std::int64_t batch, heads, kv_heads, queries, keys, dim,
      value_dim;  // queries, keys: of the longest sequence
  Tensor q, k, v, bias, sink;
  Tensor out, weights, log_sum_exp,
      scores;  // written through; const only because Tensor is shared with the inputs
  ScoreStage stage = ScoreStage::none;
  double scale;       // of a score
  float softcap = 0;  // 0: none
  // The exact kernels keep scores in a unit of their own; a difference of so much is -127 in base 2.
  softmax::Scaling scaling;
  float min_exponent;
  softmax::Softcap exact_softcap{};
  float scale_log2e;  // the scale and the softcap in base 2
  float softcap_log2e = 0;
  const Sequence* sequences = nullptr;  // one per batch entry, or null where all are alike:
  Sequence each{};
  std::int64_t front = 0;     // keys every query sees in spite of its window
  const Gap* gaps = nullptr;  // (gap_count, batch): further windows
  std::int64_t gap_count = 0;
  const cache::PagedSequence* cached = nullptr;  // one per batch entry, in place of k and v
  cache::PageLayout layout{};
  const BoolTensor* masks = nullptr;
  std::int64_t mask_count = 0;
  AlibiSlopes alibi{};
  const DocumentIds* documents = nullptr;
  std::int64_t document_count = 0;
  std::uint64_t drop_below = 0;  // a weight drops when its Philox word lies below; 0: no dropout
  std::uint64_t seed = 0;
  float drop_probability = 0;
  float keep_scale = 1;  // 1 / (1 - drop_probability)
  bool tiled_heads = false;

  constexpr const Sequence& sequence(std::int64_t b) const { return sequences ? sequences[b] : each; }
  constexpr std::int64_t group() const { return kv_heads == 0 ? 0 : heads / kv_heads; }
  // The member-th query head that reads kv_head.
  constexpr std::int64_t head(std::int64_t kv_head, std::int64_t member) const {
    return tiled_heads ? member * kv_heads + kv_head : kv_head * group() + member;
  }
  constexpr std::int64_t kv_head(std::int64_t head) const {
    return tiled_heads ? head % kv_heads : head / group();
  }
};

using softmax::block_keys, softmax::chunk_keys, softmax::chain_keys, softmax::chain_terms;

}  // namespace heed::cuda
