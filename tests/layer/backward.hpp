// SPDX-License-Identifier: Apache-2.0
// Calls of a layer with everything that backward() reads and writes.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "layer/tensors.hpp"

namespace heed::layer_tests {

struct Case {
  const char* name;
  LayerConfig config;
  std::int64_t batch, queries, keys;
  bool is_causal = false, has_context = true, has_value = true;
  std::uint64_t dropout_seed = 0;
};

inline LayerConfig shaped(std::int64_t model_dim, std::int64_t heads, std::int64_t kv_heads,
                          std::int64_t head_dim) {
  return {.model_dim = model_dim, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
}

inline std::vector<Case> cases() {
  std::vector<Case> all{
      {"self-attention", shaped(6, 2, 2, 3), 2, 5, 5, true, false, false},
      {"grouped heads", shaped(8, 4, 2, 4), 1, 7, 7, true, false, false},
      {"multi-query cross-attention", shaped(6, 3, 1, 2), 2, 3, 5, false, true, false},
      {"tiled heads", shaped(8, 4, 2, 2), 2, 4, 6, false, true, true},
      {"a value of its own beside x", shaped(6, 2, 1, 4), 1, 5, 5, true, false, true},
      {"other widths", shaped(6, 2, 2, 3), 2, 3, 4, false, true, true},
      {"rotary", shaped(8, 2, 1, 6), 2, 6, 6, true, false, false},
      {"adjacent pairs and an attention factor", shaped(8, 2, 2, 6), 1, 5, 5, false, true, false},
      {"dropout", shaped(6, 2, 2, 4), 2, 6, 6, true, false, false, 99}};
  all[3].config.head_map = HeadMap::tiled;
  all[5].config.key_dim = 5;
  all[5].config.value_dim = 7;
  all[5].config.value_head_dim = 2;
  all[6].config.rotary = Rotary{};
  all[7].config.rotary = Rotary{
      .dims = 4, .pairs = RotaryPairs::adjacent, .scaling = YarnScaling{.factor = 4, .original_length = 16}};
  all[8].config.drop_probability = 0.3f;
  return all;
}

inline std::vector<float> floats_of(const Parameter& parameter) {
  const auto* data = static_cast<const float*>(parameter.values.data);
  return {data, data + parameter.values.shape.elements()};
}

// Everything of a case that backward() reads and writes.
struct Backward {
  Case c;
  AttentionLayer layer;
  Tensor x, context, value, out, out_gradient, lse_gradient;
  Tensor dx, dcontext, dvalue;

  Backward(const Case& of, unsigned seed)
      : c(of),
        layer(c.config, with_biases(random_weights(c.config, seed), seed)),
        x(random_tensor({c.batch, 1, c.queries, layer.config().model_dim}, seed + 10)),
        context(random_tensor({c.batch, 1, c.keys, *layer.config().key_dim}, seed + 11)),
        value(random_tensor({c.batch, 1, c.keys, *layer.config().value_dim}, seed + 12)),
        out(output({c.batch, 1, c.queries, layer.config().model_dim})),
        out_gradient(random_tensor(out.shape, seed + 13)),
        lse_gradient(random_tensor({c.batch, layer.config().heads, c.queries, 1}, seed + 14)),
        dx(output(x.shape)),
        dcontext(output(context.shape)),
        dvalue(output(value.shape)) {
    if (c.dropout_seed) layer.set_mode(AttentionLayer::Mode::train);
  }

  AttentionLayer::Call call() const {
    AttentionLayer::Call made{.x = x.view(), .dropout_seed = c.dropout_seed};
    if (c.has_context) made.context = context.view();
    if (c.has_value) made.value = value.view();
    return made;
  }
  Options options() const { return c.is_causal ? causal : Options{}; }
  LayerGradients gradients() {
    LayerGradients made{
        .out = out_gradient.view(), .log_sum_exp = lse_gradient.view(), .x = dx.mutable_view()};
    if (c.has_context) made.context = dcontext.mutable_view();
    if (c.has_value) made.value = dvalue.mutable_view();
    return made;
  }
  std::map<std::string, std::vector<float>> found() {
    std::map<std::string, std::vector<float>> all{{"x", dx.values}};
    if (c.has_context) all["context"] = dcontext.values;
    if (c.has_value) all["value"] = dvalue.values;
    for (const Parameter& gradient : layer.gradients()) all[gradient.name] = floats_of(gradient);
    return all;
  }
};

}  // namespace heed::layer_tests
