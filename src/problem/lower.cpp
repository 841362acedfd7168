// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "problem/problem.hpp"
#include "softmax/philox.hpp"

namespace heed::problem {
namespace {

Few<BoolTensor, 4> lowered_masks(const Problem& p) {
  Few<BoolTensor, 4> masks;
  for (const BoolMask& m : p.bool_masks) {
    const TensorStrides stride{m.stride.batch, m.stride.heads, m.stride.length, m.stride.dim};
    masks.push_back({{m.data, stride, Type::int8}, m.visible_when, m.is_tree});
  }
  return masks;
}

KernelCall lowered(const Problem& p, std::span<const BoolTensor> masks, const softmax::Scaling& scaling) {
  const double cap = p.options.softcap.value_or(0);
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
          .scale = *p.options.scale,
          .cap = cap,
          .scaling = scaling,
          .softcap = softmax::softcap_of(static_cast<float>(cap), scaling),
          .sequences = p.sequences.data(),
          .front = p.front,
          .gaps = p.gaps.data(),
          .gap_count = p.batch == 0 ? 0 : std::ssize(p.gaps) / p.batch,
          .masks = masks.data(),
          .mask_count = std::ssize(masks),
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

Tensor lower(const View& x) {
  const Shape& n = x.shape;
  const Strides& s = x.stride;
  return {x.data,
          {n.batch > 1 ? s.batch : 0, n.heads > 1 ? s.heads : 0, n.length > 1 ? s.length : 0,
           n.dim > 1 ? s.dim : 1},
          type_of(x.dtype)};
}

LoweredProblem::LoweredProblem(const Problem& p)
    : LoweredProblem(p, softmax::scaling_of(p.scale(), p.cap())) {}

LoweredProblem::LoweredProblem(const Problem& p, const softmax::Scaling& scaling)
    : masks(lowered_masks(p)), call(lowered(p, masks, scaling)) {
  if (p.reading || !p.cached.empty()) {  // a cache for no batch entry at all has no list either
    call.cached = p.cached.data();
    call.layout = p.layout;
    call.k.type = call.v.type = type_of(p.cache_type);
  }
  if (const auto& dropout = p.options.dropout; dropout && dropout->drop_probability > 0) {
    call.drop_below = softmax::dropout_threshold(dropout->drop_probability);
    call.seed = dropout->seed;
    call.drop_probability = dropout->drop_probability;
    call.keep_scale = softmax::keep_scale(dropout->drop_probability);
  }
}

}  // namespace heed::problem
