// SPDX-License-Identifier: Apache-2.0
// A Problem as kernels of every backend read it: plain data only. Kernels are compiled for instruction sets
// that this machine may lack, and for GPUs, so nothing here instantiates inline code of the standard library.
#pragma once
#include <cstdint>

#include "cache/layout.hpp"
#include "heed/dtype.hpp"
#include "problem/sequence.hpp"
#include "softmax/scaling.hpp"

namespace heed::problem {

using Type = CacheType;  // of any element that kernels read; int8 is also a boolean

// How far apart neighbours along each axis of a tensor lie, in elements.
struct TensorStrides {
  std::int64_t batch = 0, heads = 0, length = 0, dim = 0;
};

// A tensor over (batch, heads, length, dim); data is null when the tensor was not given.
struct Tensor {
  const void* data = nullptr;
  TensorStrides stride{};
  Type type = Type::f32;
};

struct BoolTensor {
  Tensor where;  // int8: 0 or not
  bool visible_when = true;
  bool is_tree = false;  // column 0 is the first of a sequence's last `queries` keys
};

struct KernelCall {
  // queries, keys: of the longest sequence
  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, dim = 0, value_dim = 0;
  Tensor q, k, v, bias, sink;
  // Written through; const only because Tensor is shared with the inputs.
  Tensor out, weights, log_sum_exp, scores;
  ScoreStage stage = ScoreStage::none;
  double scale = 1;  // of a score
  float cap = 0;     // options.softcap; 0: none
  softmax::Scaling scaling{};
  softmax::Softcap softcap{};           // the same in units of the scores
  const Sequence* sequences = nullptr;  // one per batch entry
  std::int64_t front = 0;               // keys every query sees in spite of its window
  const Gap* gaps = nullptr;            // (gap_count, batch): further windows
  std::int64_t gap_count = 0;
  const PagedSequence* cached = nullptr;  // one per batch entry, in place of k and v
  PageLayout layout{};
  const BoolTensor* masks = nullptr;
  std::int64_t mask_count = 0;
  AlibiSlopes alibi{};
  const DocumentIds* documents = nullptr;
  std::int64_t document_count = 0;
  std::uint64_t drop_below = 0;  // a weight drops when its Philox word lies below; 0: no dropout
  std::uint64_t seed = 0;
  float drop_probability = 0;
  float keep_scale = 1;  // 1 / (1 - drop_probability)
  // Of a larger call (heed/stream.hpp): the queries here are [first_query, first_query + here) of each
  // sequence, or all of them where `here` is negative; the heads those from first_head on of all_heads.
  std::int64_t first_query = 0, here = -1, first_head = 0, all_heads = 0;
  bool tiled_heads = false;

  [[gnu::always_inline]] constexpr std::int64_t end_query(const Sequence& s) const {
    return here < 0 ? s.queries : first_query + here;
  }
  [[gnu::always_inline]] constexpr std::int64_t group() const { return kv_heads == 0 ? 0 : heads / kv_heads; }
  // The member-th query head that reads kv_head.
  [[gnu::always_inline]] constexpr std::int64_t head(std::int64_t kv_head, std::int64_t member) const {
    // fault: wrong-group
    return tiled_heads ? member * kv_heads + kv_head : kv_head * group() + member;
  }
  [[gnu::always_inline]] constexpr std::int64_t kv_head(std::int64_t head) const {
    return tiled_heads ? head % kv_heads : head / group();
  }
};

}  // namespace heed::problem
