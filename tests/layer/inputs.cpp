// SPDX-License-Identifier: Apache-2.0
// Where the layer reads from and writes to: self and cross, strides, dtypes, options that pass through.
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

TEST(inputs, x_as_its_own_context_is_self_attention) {
  const LayerConfig c{.model_dim = 12, .heads = 3, .kv_heads = 1, .rotary = Rotary{.dims = 2}};
  const AttentionLayer layer(c, with_biases(random_weights(c, 1), 2));
  const Tensor x = random_tensor({2, 1, 4, 12}, 3), copy = x;
  const Tensor y = run(layer, {.x = x.view()}, {.masks = {Causal{}}});
  for (const View& same : {x.view(), copy.view()}) {
    EXPECT_EQ(
        bit_misses(run(layer, {.x = x.view(), .context = same}, {.masks = {Causal{}}}).values, y.values), 0);
    EXPECT_EQ(bit_misses(run(layer, {.x = x.view(), .value = same}, {.masks = {Causal{}}}).values, y.values),
              0);
  }
  // Positions of the queries are the keys' too where x is the context, said or not.
  const std::vector<std::int64_t> far{100, 7, 3, 50};
  EXPECT_EQ(bit_misses(run(layer, {.x = x.view(), .context = x.view(), .positions = far}).values,
                       run(layer, {.x = x.view(), .positions = far}).values),
            0);
}

TEST(inputs, context_serves_as_value_and_value_replaces_it) {
  const AttentionLayer layer(multi_head(8, 2), random_weights(multi_head(8, 2), 4));
  const Tensor x = random_tensor({1, 1, 3, 8}, 5), keys = random_tensor({1, 1, 6, 8}, 6);
  const Tensor values = random_tensor({1, 1, 6, 8}, 7);
  const Tensor alone = run(layer, {.x = x.view(), .context = keys.view()});
  const Tensor said = run(layer, {.x = x.view(), .context = keys.view(), .value = keys.view()});
  const Tensor other = run(layer, {.x = x.view(), .context = keys.view(), .value = values.view()});
  EXPECT_EQ(bit_misses(alone.values, said.values), 0);
  EXPECT_NE(bit_misses(alone.values, other.values), 0);
}

TEST(inputs, a_batch_entry_is_computed_as_if_alone) {
  const AttentionLayer layer(grouped_query(8, 4, 2), random_weights(grouped_query(8, 4, 2), 8));
  const Tensor x = random_tensor({3, 1, 4, 8}, 9);
  const Tensor together = run(layer, {.x = x.view()});
  for (std::int64_t b = 0; b < 3; ++b) {
    const auto part = [b](const Tensor& t) {
      return std::vector<float>(t.values.begin() + b * 32, t.values.begin() + (b + 1) * 32);
    };
    const Tensor alone{{1, 1, 4, 8}, part(x)};
    EXPECT_EQ(bit_misses(run(layer, {.x = alone.view()}).values, part(together)), 0) << "batch entry " << b;
  }
}

TEST(inputs, strides_change_no_bit_and_gaps_stay_untouched) {
  const AttentionLayer layer(multi_head(4, 2), random_weights(multi_head(4, 2), 10));
  const Tensor x = random_tensor({2, 1, 3, 4}, 11);
  const Tensor y = run(layer, {.x = x.view()});
  const Strides stride{3, 999, 10, 30};  // tokens outside the dims' memory order, gaps everywhere
  std::vector<float> from(200, untouched), to(200, untouched);
  const auto place = [&](std::int64_t b, std::int64_t i, std::int64_t d) {
    return static_cast<std::size_t>(b * stride.batch + i * stride.length + d * stride.dim);
  };
  for (std::int64_t n = 0; n < 24; ++n)
    from[place(n / 12, n / 4 % 3, n % 4)] = x.values[static_cast<std::size_t>(n)];
  layer({.x = {from.data(), x.shape, stride}}, {.out = {to.data(), x.shape, stride}});
  std::int64_t misses = 0;
  for (std::int64_t n = 0; n < 24; ++n) {
    float& found = to[place(n / 12, n / 4 % 3, n % 4)];
    misses += found != y.values[static_cast<std::size_t>(n)] ? 1 : 0;
    found = untouched;
  }
  for (const float value : to) misses += value != untouched ? 1 : 0;
  EXPECT_EQ(misses, 0);
}

template <class T>
std::int64_t sixteen_bit_misses() {
  const AttentionLayer layer(multi_head(8, 2), random_weights(multi_head(8, 2), 12));
  const Shape shape{2, 1, 3, 8};
  std::vector<T> narrow, out(48);
  Tensor wide{shape, {}};
  for (const float value : random_floats(shape.elements(), 13)) {
    narrow.push_back(from_float<T>(value));
    wide.values.push_back(to_float(narrow.back()));
  }
  const Tensor y = run(layer, {.x = wide.view()});
  layer({.x = {narrow, shape}}, {.out = {out, shape}});
  std::int64_t misses = 0;
  for (std::size_t n = 0; n < out.size(); ++n)
    misses += out[n].bits != from_float<T>(y.values[n]).bits ? 1 : 0;
  return misses;
}

TEST(inputs, sixteen_bit_inputs_and_outputs_are_rounded_once) {
  EXPECT_EQ(sixteen_bit_misses<f16>(), 0);
  EXPECT_EQ(sixteen_bit_misses<bf16>(), 0);
}

TEST(inputs, a_sixteen_bit_bias_is_read_exactly) {
  const AttentionLayer layer(multi_head(8, 2), random_weights(multi_head(8, 2), 14));
  const Tensor x = random_tensor({2, 1, 3, 8}, 15);
  const Shape shape{1, 2, 3, 3};
  std::vector<f16> narrow;
  Tensor wide{shape, {}};
  for (const float value : random_floats(18, 16)) {
    narrow.push_back(from_float<f16>(value));
    wide.values.push_back(to_float(narrow.back()));
  }
  const Tensor y = run(layer, {.x = x.view()}, {.bias = wide.view()});
  const View bias{narrow, shape};
  EXPECT_EQ(bit_misses(run(layer, {.x = x.view()}, {.bias = bias}).values, y.values), 0);
  EXPECT_NE(bit_misses(run(layer, {.x = x.view()}).values, y.values), 0);
}

TEST(inputs, the_callers_scale_passes_through) {
  const AttentionLayer layer(multi_head(8, 2), random_weights(multi_head(8, 2), 17));
  const Tensor x = random_tensor({1, 1, 3, 8}, 18);
  EXPECT_EQ(
      bit_misses(run(layer, {.x = x.view()}, {.scale = 0.5f}).values, run(layer, {.x = x.view()}).values), 0);
  EXPECT_NE(
      bit_misses(run(layer, {.x = x.view()}, {.scale = 2.0f}).values, run(layer, {.x = x.view()}).values), 0);
}

TEST(inputs, the_configurations_head_map_is_the_one_used) {
  LayerConfig c = grouped_query(8, 4, 2);
  c.head_map = HeadMap::tiled;
  const LayerWeights w = random_weights(c, 19);
  const AttentionLayer tiled(c, w), interleaved(grouped_query(8, 4, 2), w);
  const Tensor x = random_tensor({1, 1, 3, 8}, 20);
  const Tensor y = run(tiled, {.x = x.view()}, {.head_map = HeadMap::interleaved});
  EXPECT_EQ(bit_misses(run(tiled, {.x = x.view()}).values, y.values), 0);
  EXPECT_NE(bit_misses(run(interleaved, {.x = x.view()}).values, y.values), 0);
}

// One row to five are multiplied by weights as they lie, more by tiles that are widened first.
TEST(inputs, weights_of_16_bits_give_the_bits_of_the_same_weights_in_f32) {
  const LayerConfig config = grouped_query(36, 6, 2);
  for (const Element element : {Element::bf16, Element::f16}) {
    LayerWeights narrow = with_biases(random_weights(config, 3), 4), wide = narrow;
    const auto round = [&](Array& kept, Array& widened) {
      kept = Array::from_floats(kept.shape, kept.to_floats(), element);
      widened = Array::from_floats(kept.shape, kept.to_floats());
    };
    round(narrow.w_q, wide.w_q), round(narrow.w_k, wide.w_k);
    round(narrow.w_v, wide.w_v), round(narrow.w_o, wide.w_o);
    const AttentionLayer of_16(config, narrow), of_32(config, wide);
    for (const std::int64_t length : {1, 2, 4, 5, 12, 30}) {
      const Tensor x = random_tensor({1, 1, length, 36}, 7);
      EXPECT_EQ(bit_misses(run(of_16, {.x = x.view()}).values, run(of_32, {.x = x.view()}).values), 0)
          << name_of(element) << ", " << length << " rows";
    }
  }
}

}  // namespace
}  // namespace heed::layer_tests
