// SPDX-License-Identifier: Apache-2.0
#include "cpu/lower.hpp"

#include <iterator>

#include "cache/layout.hpp"
#include "softmax/philox.hpp"
#include "softmax/state.hpp"

namespace heed::cpu {
namespace {

TensorStrides strides_of(const Strides& stride) {
  return {stride.batch, stride.heads, stride.length, stride.dim};
}

// The stride of an axis of one entry may be any number, and kernels multiply strides: it becomes one that can
// be multiplied.
TensorStrides strides_of(const Shape& n, const Strides& stride) {
  return {n.batch > 1 ? stride.batch : 0, n.heads > 1 ? stride.heads : 0, n.length > 1 ? stride.length : 0,
          n.dim > 1 ? stride.dim : 1};
}

Few<BoolTensor, 4> lowered_masks(const Problem& p) {
  Few<BoolTensor, 4> masks;
  for (const BoolMask& m : p.bool_masks)
    masks.push_back({{m.data, strides_of(m.stride), Type::int8}, m.visible_when, m.is_tree});
  return masks;
}

Call lowered(const Problem& p, std::span<const BoolTensor> masks, const softmax::Scaling& scaling) {
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
          .scaling = scaling,
          .softcap = softmax::softcap_of(p.options.softcap.value_or(0.0f), scaling),
          .sequences = p.sequences.data(),
          .front = p.front,
          .gaps = p.gaps.data(),
          .gap_count = p.batch == 0 ? 0 : std::ssize(p.gaps) / p.batch,
          .masks = masks.data(),
          .mask_count = static_cast<std::int64_t>(masks.size()),
          .alibi = p.alibi,
          .documents = p.documents.data(),
          .document_count = std::ssize(p.documents),
          .first_query = p.first_query_here(),
          .here = p.place ? p.inputs.q.shape.length : -1,
          .first_head = p.place ? p.place->first_head : 0,
          .all_heads = p.place ? p.place->heads : p.heads,
          .tiled_heads = p.options.head_map == HeadMap::tiled};
}

}  // namespace

Tensor lower(const View& x) { return {x.data, strides_of(x.shape, x.stride), cache::type_of(x.dtype)}; }

LoweredCall::LoweredCall(const Problem& p)
    : LoweredCall(p, softmax::scaling_of(p.scale, p.options.softcap.value_or(0.0f))) {}

LoweredCall::LoweredCall(const Problem& p, const softmax::Scaling& scaling)
    : masks(lowered_masks(p)), call(lowered(p, masks, scaling)) {
  call.needs_reference = &needs_reference;
  if (p.reading) {
    for (const Sequence& s : p.sequences) cached.push_back(p.reading->sequence(s.in_cache));
    call.cached = cached.data();
    call.layout = p.reading->layout();
    call.k.type = call.v.type = p.cache_type;
  }
  if (const auto& dropout = p.options.dropout; dropout && dropout->drop_probability > 0) {
    call.drop_below = softmax::dropout_threshold(dropout->drop_probability);
    call.seed = dropout->seed;
    call.keep_scale = softmax::keep_scale(dropout->drop_probability);
  }
}

}  // namespace heed::cpu
