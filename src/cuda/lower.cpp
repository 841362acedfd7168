// SPDX-License-Identifier: Apache-2.0
#include "cuda/lower.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "refusal/argument.hpp"
#include "softmax/philox.hpp"
#include "softmax/state.hpp"

namespace heed::cuda {
namespace {

template <class AnyView>
Tensor lower_if_given(const std::optional<AnyView>& x) {
  return x ? lower(View(*x)) : Tensor{};
}

std::vector<BoolTensor> lowered_masks(const Problem& p) {
  std::vector<BoolTensor> masks;
  for (const BoolMask& m : p.bool_masks)
    masks.push_back({{m.data, m.stride.batch, m.stride.heads, m.stride.length, m.stride.dim, Type::i8},
                     m.visible_when,
                     m.is_tree});
  return masks;
}

// Of matrices of booleans, in the order of the problem's.
std::vector<std::int64_t> bytes_on_host(const Problem& p) {
  std::vector<std::int64_t> bytes;
  const auto add = [&](const auto& mask) {
    if constexpr (requires { mask.where; }) {
      const bool is_there = mask.where.device != Device::cpu || mask.where.shape.elements() == 0;
      bytes.push_back(is_there ? 0 : reach_bytes(Argument("mask", mask.where)));
    }
  };
  for (const Mask& mask : p.options.masks) std::visit(add, mask);
  return bytes;
}

Call lowered(const Problem& p) {
  const softmax::Scaling scaling = softmax::scaling_of(p.scale, p.options.softcap.value_or(0.0f));
  return {.batch = p.batch,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .queries = p.queries,
          .keys = p.keys,
          .dim = p.dim,
          .value_dim = p.value_dim,
          .q = lower(p.inputs.q),
          .k = lower(p.inputs.k),
          .v = lower(p.inputs.v),
          .bias = lower_if_given(p.bias),
          .sink = lower_if_given(p.sink),
          .out = lower(View(p.outputs.out)),
          .weights = lower_if_given(p.outputs.weights),
          .log_sum_exp = lower_if_given(p.outputs.log_sum_exp),
          .scores = p.outputs.scores.into ? lower(View(*p.outputs.scores.into)) : Tensor{},
          .stage = p.score_stage(),
          .scale = p.options.scale ? static_cast<double>(*p.options.scale)
                                   : 1 / std::sqrt(static_cast<double>(p.dim)),
          .softcap = p.options.softcap.value_or(0.0f),
          .scaling = scaling,
          .min_exponent = -127.0f / scaling.exponent,
          .exact_softcap = softmax::softcap_of(p.options.softcap.value_or(0.0f), scaling),
          .scale_log2e = softmax::in_base_2(p.scale),
          .softcap_log2e = softmax::in_base_2(p.options.softcap.value_or(0.0f)),
          .front = p.front,
          .gap_count = p.batch == 0 ? 0 : std::ssize(p.gaps) / p.batch,
          .mask_count = std::ssize(p.bool_masks),
          .alibi = p.alibi,
          .document_count = std::ssize(p.documents),
          .tiled_heads = p.options.head_map == HeadMap::tiled};
}

// Which sequence of a cache it is does not matter here: `cached` lists their pages.
bool is_like(const Sequence& a, const Sequence& b) {
  return a.queries == b.queries && a.keys == b.keys && a.first_query == b.first_query &&
         a.first_key == b.first_key && a.key_count == b.key_count && a.first_offset == b.first_offset &&
         a.end_offset == b.end_offset;
}

}  // namespace

Type type_of(DType dtype) {
  return dtype == DType::f32 ? Type::f32 : dtype == DType::f16 ? Type::f16 : Type::bf16;
}

Type type_of(CacheType type) {
  return type == CacheType::int8  ? Type::i8
         : type == CacheType::f32 ? Type::f32
         : type == CacheType::f16 ? Type::f16
                                  : Type::bf16;
}

Tensor lower(const View& x) {
  // An axis of one entry needs no stride; whatever stands for it must only be a harmless one.
  const auto given = [](std::int64_t stride, std::int64_t otherwise) {
    return stride < 0 ? otherwise : stride;
  };
  return {x.data,
          given(x.stride.batch, 0),
          given(x.stride.heads, 0),
          given(x.stride.length, x.shape.dim),
          given(x.stride.dim, 1),
          type_of(x.dtype)};
}

LoweredCall::LoweredCall(const Problem& p)
    : sequences(p.sequences.begin(), p.sequences.end()),
      gaps(p.gaps.begin(), p.gaps.end()),
      masks(lowered_masks(p)),
      masks_to_bring(bytes_on_host(p)),
      query_rows(p.inputs.q.shape.length),
      key_rows(p.inputs.k.shape.length),
      call(lowered(p)) {
  if (p.reading) {
    cached.assign(p.cached.begin(), p.cached.end());
    call.cached = cached.data();
    call.layout = p.reading->layout();
    call.k.type = call.v.type = type_of(p.cache_type);
  }
  const auto as_the_first = [&](const Sequence& s) { return is_like(s, sequences.front()); };
  if (!sequences.empty()) call.each = sequences.front();
  if (!std::all_of(sequences.begin(), sequences.end(), as_the_first)) call.sequences = sequences.data();
  call.gaps = gaps.data();
  if (p.alibi.of_heads) slopes.assign(p.options.alibi->slopes.begin(), p.options.alibi->slopes.end());
  copy_documents(p);
  call.documents = documents.data();
  call.masks = masks.data();
  if (const auto& dropout = p.options.dropout; dropout && dropout->drop_probability > 0) {
    call.drop_below = softmax::dropout_threshold(dropout->drop_probability);
    call.seed = dropout->seed;
    call.drop_probability = dropout->drop_probability;
    call.keep_scale = softmax::keep_scale(dropout->drop_probability);
  }
}

void LoweredCall::copy_documents(const Problem& p) {
  const auto numbers = [&](const std::int32_t* from, std::int64_t step, std::int64_t tokens) {
    const std::int64_t count = from == nullptr ? 0 : step == 0 ? tokens : p.batch * step;
    document_numbers.emplace_back(from, from + count);
    return from == nullptr ? nullptr : document_numbers.back().data();
  };
  const std::int64_t queries = p.inputs.query_starts.empty() ? p.inputs.q.shape.length : p.queries;
  for (DocumentIds d : p.documents) {
    d.keys = numbers(d.keys, d.keys_step, p.keys);
    d.queries = numbers(d.queries, d.queries_step, queries);
    documents.push_back(d);
  }
}

}  // namespace heed::cuda
