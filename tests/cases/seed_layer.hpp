// SPDX-License-Identifier: Apache-2.0
// The seeds' layers as heed's: inputs and weight matrices from the fixtures' generator, and one call that
// returns it all.
#pragma once
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "cases/fixture.hpp"
#include "heed/layer.hpp"

namespace heed::cases {

inline Array array_of(std::vector<std::int64_t> shape, const std::vector<float>& values) {
  Array made{.element = Element::f32, .shape = std::move(shape), .data = {}};
  made.data.resize(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(made.data.data(), values.data(), made.data.size());
  return made;
}

// Columns [first, first + out) of the (in, width) matrix that the fixtures draw, as the (out, in) one heed
// stores.
struct Drawn {
  std::uint64_t stream;
  std::int64_t in, width;
  float magnitude = 1;
};
inline void append_transposed(const Drawn& from, std::int64_t out, std::vector<float>& rows) {
  const std::vector<float> drawn = uniforms(from.stream, from.in * from.width, from.magnitude);
  for (std::int64_t o = 0; o < out; ++o)
    for (std::int64_t i = 0; i < from.in; ++i)
      rows.push_back(drawn[static_cast<std::size_t>(i * from.width + o)]);
}
inline Array weight_matrix(const Drawn& from, std::optional<std::int64_t> out = {}) {
  std::vector<float> rows;
  append_transposed(from, out.value_or(from.width), rows);
  return array_of({out.value_or(from.width), from.in}, rows);
}

inline Tensor sequence(std::uint64_t stream, std::int64_t batch, std::int64_t length, std::int64_t dim,
                       float magnitude = 1) {
  return Tensor::random({batch, 1, length, dim}, stream, magnitude);
}

struct LayerCall {
  const Tensor& x;
  const Tensor& context;
  const Tensor& value;
  std::int64_t weight_heads = 0;  // how many heads of weights to ask for
  Options options{};
  std::uint64_t dropout_seed = 0;
};
struct LayerResult {
  Tensor out, weights;
};

inline LayerResult run(const AttentionLayer& layer, const LayerCall& call) {
  const Shape x = call.x.shape();
  LayerResult result{Tensor({x.batch, 1, x.length, layer.config().model_dim}),
                     Tensor({x.batch, call.weight_heads, x.length, call.context.shape().length})};
  result.out.fill_bytes(0xff);
  result.weights.fill_bytes(0xff);
  Outputs outputs{.out = result.out.mutable_view()};
  if (call.weight_heads > 0) outputs.weights = result.weights.mutable_view();
  layer({.x = call.x.view(),
         .context = call.context.view(),
         .value = call.value.view(),
         .dropout_seed = call.dropout_seed},
        outputs, call.options);
  return result;
}

}  // namespace heed::cases
