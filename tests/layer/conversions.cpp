// SPDX-License-Identifier: Apache-2.0
// Checkpoints made into others: pooled KV heads, and tiled query heads made interleaved.
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

// Copies KV head (h / group) * group over head h, so that all heads of a group are equal.
Array repeat_first_of_groups(const Array& array, std::int64_t heads, std::int64_t group) {
  std::vector<float> values = array.to_floats();
  const std::size_t block = values.size() / static_cast<std::size_t>(heads),
                    size = static_cast<std::size_t>(group);
  for (std::size_t n = 0; n < values.size(); ++n)
    values[n] = values[n / block / size * size * block + n % block];
  return Array::from_floats(array.shape, values, array.element);
}

TEST(conversions, pooling_takes_the_mean_of_each_group) {
  LayerWeights w = random_weights(multi_head(4, 4), 0);  // four heads of one dimension
  w.w_k = Array::from_floats({4, 4}, {1, 2, 3, 4, 3, 4, 5, 6, 0, 0, 0, 0, 8, 6, 4, 2});
  w.b_k = Array::from_floats({4}, {1, 2, 10, 30});
  w.w_v = Array::from_floats({4, 4}, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 5, 5, 5, 5});
  const LayerWeights pooled = pool_kv_heads(w, 4, 2);
  EXPECT_EQ(pooled.w_k.shape, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(pooled.w_k.to_floats(), (std::vector<float>{2, 3, 4, 5, 4, 3, 2, 1}));
  EXPECT_EQ(pooled.b_k->to_floats(), (std::vector<float>{1.5f, 20}));
  EXPECT_EQ(pool_kv_heads(w, 4, 1).w_v.to_floats(), (std::vector<float>{2, 2, 2, 2}));
  EXPECT_TRUE(same_array(pooled.w_q, w.w_q));
  EXPECT_TRUE(same_array(pooled.w_o, w.w_o));
  EXPECT_FALSE(pooled.b_v);
}

TEST(conversions, pooling_keeps_the_dimensions_of_a_head_apart) {
  LayerWeights w = random_weights(multi_head(4, 2), 0);  // two heads of two dimensions
  w.w_v = Array::from_floats({4, 4}, {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 6, 6, 6, 6});
  EXPECT_EQ(pool_kv_heads(w, 2, 1).w_v.to_floats(), (std::vector<float>{2, 2, 2, 2, 4, 4, 4, 4}));
}

TEST(conversions, pooling_equal_heads_changes_no_bit_of_the_output) {
  const std::int64_t heads = 6;
  for (const std::int64_t kv_heads : {1, 2, 3}) {
    LayerWeights w = with_biases(random_weights(multi_head(24, heads), 1), 2);
    w.w_k = repeat_first_of_groups(w.w_k, heads, heads / kv_heads);
    w.w_v = repeat_first_of_groups(w.w_v, heads, heads / kv_heads);
    w.b_k = repeat_first_of_groups(*w.b_k, heads, heads / kv_heads);
    w.b_v = repeat_first_of_groups(*w.b_v, heads, heads / kv_heads);
    const Tensor x = random_tensor({2, 1, 7, 24}, 3);
    const Tensor before = run(AttentionLayer(multi_head(24, heads), w), {.x = x.view()});
    const LayerWeights pooled = pool_kv_heads(w, heads, kv_heads);
    const Tensor after = run(AttentionLayer(grouped_query(24, heads, kv_heads), pooled), {.x = x.view()});
    EXPECT_EQ(bit_misses(before.values, after.values), 0) << "kv_heads " << kv_heads;
  }
}

TEST(conversions, pooling_keeps_the_element_type) {
  LayerWeights w = random_weights(multi_head(4, 2), 4);
  w.w_k = random_array({4, 4}, 5, Element::bf16);
  EXPECT_EQ(pool_kv_heads(w, 2, 1).w_k.element, Element::bf16);
  EXPECT_TRUE(same_weights(pool_kv_heads(w, 2, 2), w));
}

TEST(conversions, bad_pooling_is_refused) {
  const LayerWeights w = random_weights(multi_head(8, 4), 0);
  expect_refusal(Error::shape, "to: 3 does not divide from: 4", [&] { pool_kv_heads(w, 4, 3); });
  expect_refusal(Error::shape, "from: 3 does not divide w_k.rows: 8", [&] { pool_kv_heads(w, 3, 1); });
  expect_refusal(Error::value, "to: 0 is not positive", [&] { pool_kv_heads(w, 4, 0); });
  expect_refusal(Error::value, "from: -4 is not positive", [&] { pool_kv_heads(w, -4, 1); });
}

// Tiled head h reads KV head h mod 2; interleaved, the heads that read KV head 0 come first.
TEST(conversions, interleaving_puts_the_readers_of_a_kv_head_side_by_side) {
  LayerWeights w = random_weights(grouped_query(4, 4, 2), 0);
  w.w_q = Array::from_floats({4, 4}, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3});
  w.b_q = Array::from_floats({4}, {0, 1, 2, 3});
  w.w_o = Array::from_floats({4, 4}, {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33});
  const LayerWeights interleaved = interleave_heads(w, 4, 2);
  EXPECT_EQ(interleaved.b_q->to_floats(), (std::vector<float>{0, 2, 1, 3}));
  EXPECT_EQ(interleaved.w_q.to_floats(),
            (std::vector<float>{0, 0, 0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 3, 3, 3, 3}));
  EXPECT_EQ(interleaved.w_o.to_floats(),
            (std::vector<float>{0, 2, 1, 3, 10, 12, 11, 13, 20, 22, 21, 23, 30, 32, 31, 33}));
  EXPECT_TRUE(same_array(interleaved.w_k, w.w_k));
  EXPECT_TRUE(same_array(interleaved.w_v, w.w_v));
}

TEST(conversions, a_tiled_layer_equals_its_interleaved_form) {
  LayerConfig c{.model_dim = 24, .heads = 6, .kv_heads = 2, .value_head_dim = 3};
  const LayerWeights w = with_biases(random_weights(c, 6), 7);
  const AttentionLayer interleaved(c, interleave_heads(w, 6, 2)), mistaken(c, w);
  c.head_map = HeadMap::tiled;
  const AttentionLayer tiled(c, w);
  const Tensor x = random_tensor({2, 1, 5, 24}, 8);
  Tensor y = output({2, 1, 5, 24}), z = y, y_weights = output({2, 6, 5, 5}), z_weights = y_weights;
  tiled({.x = x.view()}, {.out = y.mutable_view(), .weights = y_weights.mutable_view()});
  interleaved({.x = x.view()}, {.out = z.mutable_view(), .weights = z_weights.mutable_view()});
  EXPECT_EQ(far_misses(z.values, y.values, 1e-6), 0);  // W_o adds the heads in another order
  std::int64_t misses = 0, mistaken_rows = 0;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 6; ++h)
      for (std::int64_t n = 0; n < 25; ++n)
        misses += z_weights.at(b, h, 0, n) != y_weights.at(b, h % 3 * 2 + h / 3, 0, n) ? 1 : 0;
  EXPECT_EQ(misses, 0);
  const Tensor wrong = run(mistaken, {.x = x.view()});
  for (std::size_t n = 0; n < wrong.values.size(); ++n)
    mistaken_rows += std::abs(wrong.values[n] - y.values[n]) > 1e-3f;
  EXPECT_GT(mistaken_rows, 0);
}

TEST(conversions, bad_interleaving_is_refused) {
  const LayerWeights w = random_weights(grouped_query(8, 4, 2), 0);
  expect_refusal(Error::shape, "kv_heads: 3 does not divide heads: 4", [&] { interleave_heads(w, 4, 3); });
  expect_refusal(Error::shape, "heads: 3 does not divide w_q.rows: 8", [&] { interleave_heads(w, 3, 1); });
  expect_refusal(Error::shape, "heads / kv_heads: 4 is not w_q.rows / w_k.rows: 2",
                 [&] { interleave_heads(w, 4, 1); });
  expect_refusal(Error::value, "heads: 0 is not positive", [&] { interleave_heads(w, 0, 1); });
}

}  // namespace
}  // namespace heed::layer_tests
