// SPDX-License-Identifier: Apache-2.0
// A Problem as kernels of every backend read it: plain data only. Kernels are compiled for instruction sets
// that this machine may lack, and for GPUs, so nothing here instantiates inline code of the standard library.
#pragma once
#include <cstdint>

#include "cache/layout.hpp"
#include "heed/dtype.hpp"
#include "softmax/state.hpp"

namespace heed::problem {

// Which rows a sequence has, and which keys its queries may see.

// One batch entry of the call, or one sequence of a packed one.
struct Sequence {
  std::int64_t queries = 0, keys = 0;
  std::int64_t first_query = 0, first_key = 0;  // where its rows begin in the views; not 0 when packed
  std::int64_t key_count = 0;                   // what KeyLengths leaves of the keys
  std::int64_t in_cache = 0;                    // its number there
  // Causal and Window: query i sees no key in [front, i + first_offset) and none from i + end_offset on.
  // Offsets are clamped to +-(queries + keys).
  std::int64_t first_offset = 0, end_offset = 0;
};

// One more window whose `front` is not the problem's: query i sees no key in [front, i + first_offset).
struct Gap {
  std::int64_t front = 0, first_offset = 0;
};

// One Document mask: the document of every key and of every query, and how many numbers further those of the
// next sequence begin: 0 where all share them.
struct DocumentIds {
  const std::int32_t* keys = nullptr;
  std::int64_t keys_step = 0;
  const std::int32_t* queries = nullptr;  // null: a query is of the document of the key it stands beside
  std::int64_t queries_step = 0;
  bool queries_are_last =
      false;  // the last query stands beside the last key; else the first beside the first
};

// ALiBi's slopes, one per query head; null: none. Those of the next sequence begin `step` further: 0 where
// all share them.
struct AlibiSlopes {
  const float* of_heads = nullptr;
  std::int64_t step = 0;
  bool queries_are_last = false;  // as in DocumentIds
};

// Which scores a call writes (S4).
enum class ScoreStage : std::uint8_t { none, raw, softcapped, biased };

// Of any element that kernels read; int8 is also a boolean.
enum class Type : std::uint8_t { f32, f16, bf16, int8, f64 };

constexpr Type type_of(CacheType type) {
  return type == CacheType::f32    ? Type::f32
         : type == CacheType::f16  ? Type::f16
         : type == CacheType::bf16 ? Type::bf16
                                   : Type::int8;
}
constexpr Type type_of(DType dtype) {
  return dtype == DType::f32    ? Type::f32
         : dtype == DType::f16  ? Type::f16
         : dtype == DType::bf16 ? Type::bf16
                                : Type::f64;
}

// Integers come out times their scales.
constexpr DType dtype_of(CacheType type) {
  return type == CacheType::f16 ? DType::f16 : type == CacheType::bf16 ? DType::bf16 : DType::f32;
}

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
  double cap = 0;    // options.softcap; 0: none
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
  double drop_probability = 0;
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

namespace heed {
using problem::AlibiSlopes, problem::DocumentIds, problem::Gap, problem::ScoreStage, problem::Sequence;
}
