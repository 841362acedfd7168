// SPDX-License-Identifier: Apache-2.0
// LayerConfig: what the names mean, the defaults, and every refusal with its sentence.
#include <limits>

#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

TEST(configs, the_names_of_the_papers_are_numbers_of_kv_heads) {
  EXPECT_EQ(multi_head(768, 12).kv_heads, 12);
  EXPECT_EQ(multi_query(768, 12).kv_heads, 1);
  EXPECT_EQ(grouped_query(768, 12, 6).kv_heads, 6);
  EXPECT_EQ(grouped_query(768, 12, 6).model_dim, 768);
  EXPECT_EQ(grouped_query(768, 12, 6).heads, 12);
}

TEST(configs, the_layer_shows_every_default_filled_in) {
  const LayerConfig given{.model_dim = 8, .heads = 2};
  const AttentionLayer layer(given, random_weights(given, 0));
  const LayerConfig& filled_in = layer.config();
  EXPECT_EQ(filled_in.kv_heads, 2);
  EXPECT_EQ(filled_in.head_dim, 4);
  EXPECT_EQ(filled_in.value_head_dim, 4);
  EXPECT_EQ(filled_in.key_dim, 8);
  EXPECT_EQ(filled_in.value_dim, 8);
}

TEST(configs, the_value_width_follows_the_key_width) {
  const LayerConfig given{.model_dim = 8, .heads = 2, .head_dim = 3, .key_dim = 5};
  const LayerWeights w = random_weights(given, 0);
  EXPECT_EQ(w.w_q.shape, (std::vector<std::int64_t>{6, 8}));
  EXPECT_EQ(w.w_k.shape, (std::vector<std::int64_t>{6, 5}));
  EXPECT_EQ(w.w_v.shape, (std::vector<std::int64_t>{6, 5}));
  EXPECT_EQ(w.w_o.shape, (std::vector<std::int64_t>{8, 6}));
}

TEST(configs, bad_ones_are_refused_in_a_sentence) {
  const LayerConfig good{.model_dim = 8, .heads = 4};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Row {
    Error::Code code;
    const char* sentence;
    std::function<void(LayerConfig&)> spoil;
  };
  const std::vector<Row> rows{
      {Error::value, "config.model_dim: 0 is not in [1, 2147483647]", [](auto& c) { c.model_dim = 0; }},
      {Error::value, "config.heads: -2 is not in [1, 2147483647]", [](auto& c) { c.heads = -2; }},
      {Error::shape, "config.heads: 3 does not divide config.model_dim: 8, and no head_dim is given",
       [](auto& c) { c.heads = 3; }},
      {Error::shape, "config.kv_heads: 3 does not divide config.heads: 4", [](auto& c) { c.kv_heads = 3; }},
      {Error::shape, "config.kv_heads: 8 does not divide config.heads: 4", [](auto& c) { c.kv_heads = 8; }},
      {Error::value, "config.kv_heads: 0 is not in [1, 2147483647]", [](auto& c) { c.kv_heads = 0; }},
      {Error::value, "config.head_dim: 0 is not in [1, 2147483647]", [](auto& c) { c.head_dim = 0; }},
      {Error::value, "config.head_dim: 2147483648 is not in [1, 2147483647]",
       [](auto& c) { c.head_dim = 2147483648; }},
      {Error::value, "config.value_head_dim: -1 is not in [1, 2147483647]",
       [](auto& c) { c.value_head_dim = -1; }},
      {Error::value, "config.key_dim: 0 is not in [1, 2147483647]", [](auto& c) { c.key_dim = 0; }},
      {Error::value, "config.value_dim: 0 is not in [1, 2147483647]", [](auto& c) { c.value_dim = 0; }},
      {Error::value, "config.heads * config.head_dim: 4000000000 is beyond 2147483647",
       [](auto& c) { c.head_dim = 1000000000; }},
      {Error::value, "config.heads * config.value_head_dim: 4000000000 is beyond 2147483647",
       [](auto& c) { c.value_head_dim = 1000000000; }},
      {Error::value, "config.drop_probability: 1 is not in [0, 1)", [](auto& c) { c.drop_probability = 1; }},
      {Error::value, "config.drop_probability: -0.25 is not in [0, 1)",
       [](auto& c) { c.drop_probability = -0.25f; }},
      {Error::value, "config.drop_probability: nan is not in [0, 1)",
       [nan](auto& c) { c.drop_probability = nan; }},
      {Error::value, "config.rotary.base: 0 is not a positive finite number",
       [](auto& c) { c.rotary = {.base = 0}; }},
      {Error::value, "config.rotary.base: nan is not a positive finite number",
       [nan](auto& c) { c.rotary = {.base = nan}; }},
      {Error::value, "config.rotary.dims: 1 is not a positive even number",
       [](auto& c) { c.rotary = {.dims = 1}; }},
      {Error::value, "config.rotary.dims: 4 is more than the head's dim: 2",
       [](auto& c) { c.rotary = {.dims = 4}; }},
      {Error::value,
       "config.rotary.dims: 5 is not a positive even number (the whole head turns unless dims says "
       "otherwise)",
       [](auto& c) {
         c.head_dim = 5;
         c.rotary = Rotary{};
       }}};
  for (const Row& row : rows) {
    LayerConfig c = good;
    row.spoil(c);
    expect_refusal(row.code, row.sentence, [&] { random_weights(c, 0); });
    expect_refusal(row.code, row.sentence, [&] { AttentionLayer(c, random_weights(good, 0)); });
  }
}

TEST(configs, weights_of_other_shapes_are_refused) {
  const LayerConfig c = grouped_query(8, 4, 2);
  const LayerWeights good = with_biases(random_weights(c, 0), 1);
  LayerWeights w = good;
  w.w_q = random_array({8, 7}, 0);
  expect_refusal(Error::shape, "w_q.shape: (8, 7) is not (heads * head_dim, model_dim): (8, 8)",
                 [&] { AttentionLayer(c, w); });
  w = good;
  w.w_k = random_array({8, 8}, 0);
  expect_refusal(Error::shape, "w_k.shape: (8, 8) is not (kv_heads * head_dim, key_dim): (4, 8)",
                 [&] { AttentionLayer(c, w); });
  w = good;
  w.b_v = random_array({3}, 0);
  expect_refusal(Error::shape, "b_v.length: 3 is not w_v.rows: 4", [&] { AttentionLayer(c, w); });
  w = good;
  w.w_o.element = Element::i32;
  expect_refusal(Error::dtype, "w_o.element: i32 is not a floating-point type",
                 [&] { AttentionLayer(c, w); });
  w = good;
  w.w_v.data.pop_back();
  expect_refusal(Error::shape, "w_v.data: 127 bytes are not (4, 8) of f32", [&] { AttentionLayer(c, w); });
  w.w_v.shape = {1LL << 40, 1LL << 40};
  expect_refusal(Error::shape, "w_v.data: 127 bytes are not (1099511627776, 1099511627776) of f32",
                 [&] { AttentionLayer(c, w); });
}

TEST(configs, the_layer_gives_its_weights_back) {
  LayerWeights w = with_biases(random_weights(multi_head(6, 2), 4), 5);
  w.w_v = random_array({6, 6}, 6, Element::bf16);
  EXPECT_TRUE(same_weights(AttentionLayer(multi_head(6, 2), w).weights(), w));
}

}  // namespace
}  // namespace heed::layer_tests
