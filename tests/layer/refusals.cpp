// SPDX-License-Identifier: Apache-2.0
// Bad calls of the layer: each with its exact sentence, and nothing written.
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

// A call that is good until a row of the table spoils it.
struct Draft {
  LayerConfig config{.model_dim = 8, .heads = 4, .kv_heads = 2, .key_dim = 6, .value_dim = 5};
  Tensor x_memory = random_tensor({2, 1, 3, 8}, 1), context_memory = random_tensor({2, 1, 4, 6}, 2);
  Tensor value_memory = random_tensor({2, 1, 4, 5}, 3), out_memory = output({2, 1, 3, 8});
  Tensor weights_memory = output({2, 4, 3, 4}), lse_memory = output({2, 4, 3, 1}),
         scores_memory = output({2, 4, 3, 4});
  std::vector<std::int64_t> positions{};
  AttentionLayer::Call call{
      .x = x_memory.view(), .context = context_memory.view(), .value = value_memory.view()};
  Outputs outputs{.out = out_memory.mutable_view(),
                  .weights = weights_memory.mutable_view(),
                  .log_sum_exp = lse_memory.mutable_view(),
                  .scores = {scores_memory.mutable_view()}};
  Options options{};

  std::int64_t written() const {
    std::int64_t count = 0;
    for (const Tensor* memory : {&out_memory, &weights_memory, &lse_memory, &scores_memory})
      for (const float value : memory->values) count += value != untouched ? 1 : 0;
    return count;
  }
};

struct BadCall {
  Error::Code code;
  const char* sentence;
  void (*spoil)(Draft&);
};

const std::vector<BadCall> bad_calls{
    {Error::shape, "x.dim: 7 is not model_dim: 8", [](Draft& d) { d.call.x.shape.dim = 7; }},
    {Error::shape, "x.heads: 2 is not 1; the layer splits the heads itself",
     [](Draft& d) { d.call.x = {static_cast<const float*>(d.call.x.data), {2, 2, 3, 4}}; }},
    {Error::shape, "x.batch: -1 is negative", [](Draft& d) { d.call.x.shape.batch = -1; }},
    {Error::shape, "x.stride.dim: -1 is negative, or was not given",
     [](Draft& d) { d.call.x.stride.dim = -1; }},
    {Error::value, "x.data: null, but the shape is (2, 1, 3, 8)", [](Draft& d) { d.call.x.data = nullptr; }},
    {Error::device, "x.device: cuda is not config.device: cpu",
     [](Draft& d) { d.call.x.device = Device::cuda; }},
    {Error::shape, "context.dim: 5 is not key_dim: 6",
     [](Draft& d) { d.call.context = d.value_memory.view(); }},
    {Error::shape, "context.batch: 1 is not x.batch: 2", [](Draft& d) { d.call.context->shape.batch = 1; }},
    {Error::shape, "context: none is given, and x.dim: 8 is not key_dim: 6",
     [](Draft& d) { d.call.context.reset(); }},
    {Error::shape, "value: none is given, and context.dim: 6 is not value_dim: 5",
     [](Draft& d) { d.call.value.reset(); }},
    {Error::shape, "value.dim: 6 is not value_dim: 5",
     [](Draft& d) { d.call.value = d.context_memory.view(); }},
    {Error::shape, "value.length: 3 is not context.length: 4",
     [](Draft& d) { d.call.value->shape.length = 3; }},
    {Error::shape, "value.batch: 1 is not x.batch: 2", [](Draft& d) { d.call.value->shape.batch = 1; }},
    {Error::shape, "out.shape: (2, 1, 2, 8) is not (batch, 1, queries, model_dim): (2, 1, 3, 8)",
     [](Draft& d) { d.outputs.out.shape.length = 2; }},
    {Error::overlap, "out.stride.batch: 0 puts 2 results in one place",
     [](Draft& d) { d.outputs.out.stride.batch = 0; }},
    {Error::overlap, "out: shares memory with x",
     [](Draft& d) { d.outputs.out.data = d.x_memory.values.data(); }},
    {Error::overlap, "weights: shares memory with out",
     [](Draft& d) { d.outputs.out.data = d.weights_memory.values.data(); }},
    {Error::overlap, "log_sum_exp: shares memory with value",
     [](Draft& d) { d.outputs.log_sum_exp->data = d.value_memory.values.data(); }},
    {Error::overlap, "scores.into: shares memory with weights",
     [](Draft& d) {
       d.weights_memory.values.resize(95 + 96, untouched);  // so that the scores reach into nothing else
       d.outputs.weights->data = d.weights_memory.values.data();
       d.outputs.scores.into->data = d.weights_memory.values.data() + 95;
     }},
    {Error::shape, "weights.shape: (2, 3, 3, 4) is not (batch, heads, queries, keys): (2, 4, 3, 4)",
     [](Draft& d) { d.outputs.weights->shape.heads = 3; }},
    {Error::shape, "weights.shape: (2, 1, 3, 3) is not (batch, 1, queries, keys): (2, 1, 3, 4)",
     [](Draft& d) { d.outputs.weights->shape = {2, 1, 3, 3}; }},
    {Error::shape, "log_sum_exp.shape: (2, 2, 3, 1) is not (batch, heads, queries, 1): (2, 4, 3, 1)",
     [](Draft& d) { d.outputs.log_sum_exp->shape.heads = 2; }},
    {Error::shape, "scores.into.shape: (2, 1, 3, 4) is not (batch, heads, queries, keys): (2, 4, 3, 4)",
     [](Draft& d) { d.outputs.scores.into->shape.heads = 1; }},
    {Error::value, "options.dropout: the layer owns it; set config.drop_probability and Mode::train",
     [](Draft& d) { d.options.dropout = Dropout{}; }},
    {Error::value, "positions: given, but config.rotary is not",
     [](Draft& d) {
       d.positions = {0, 1, 2};
       d.call.positions = d.positions;
     }},
    {Error::shape, "positions: 2 entries are neither one per token: 3 nor one per batch entry and token: 6",
     [](Draft& d) {
       d.config.rotary = Rotary{};
       d.positions = {0, 1};
       d.call.positions = d.positions;
     }},
    {Error::shape,
     "key_positions: 3 entries are neither one per token: 4 nor one per batch entry and token: 8",
     [](Draft& d) {
       d.config.rotary = Rotary{};
       d.positions = {0, 1, 2};
       d.call.key_positions = d.positions;
     }},
    {Error::value, "options.softcap: -1 is not a finite number above 0",
     [](Draft& d) { d.options.softcap = -1.0f; }},
    {Error::shape,
     "options.bias.shape: (2, 1, 3, 8) does not broadcast to (batch, heads, queries, keys): (2, 4, 3, 4)",
     [](Draft& d) { d.options.bias = d.x_memory.view(); }}};

TEST(refusals_of_the_layer, name_the_argument_the_rule_and_what_was_found) {
  for (const BadCall& row : bad_calls) {
    Draft d;
    row.spoil(d);
    const AttentionLayer layer(d.config, random_weights(d.config, 4));
    expect_refusal(row.code, row.sentence, [&] { layer(d.call, d.outputs, d.options); });
    EXPECT_EQ(d.written(), 0) << row.sentence;
  }
}

TEST(refusals_of_the_layer, write_nothing_when_attention_itself_refuses) {
  Draft d;
  d.options.kernel = "no.such.kernel";
  const AttentionLayer layer(d.config, random_weights(d.config, 4));
  EXPECT_THROW(layer(d.call, d.outputs, d.options), Error);
  d.options.kernel.clear();
  d.options.masks = {Causal{}};  // 3 queries and 4 keys: ambiguous
  EXPECT_THROW(layer(d.call, d.outputs, d.options), Error);
  EXPECT_EQ(d.written(), 0);
}

TEST(refusals_of_the_layer, leave_the_good_call_alone) {
  Draft d;
  const AttentionLayer layer(d.config, random_weights(d.config, 4));
  layer(d.call, d.outputs, d.options);
  EXPECT_EQ(d.written(), 48 + 96 + 24 + 96);
}

}  // namespace
}  // namespace heed::layer_tests
