// SPDX-License-Identifier: Apache-2.0
// Every field of the layer and the cache arrives where C++ has it.
#include <array>
#include <cstring>
#include <tuple>

#include "c/in_c.hpp"
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

template <class Struct>
Struct sized() {
  Struct made{};
  made.size = sizeof made;
  return made;
}

heed_view matrix(const Array& array) {
  heed_view made{};
  made.data = array.data.data();
  made.shape = {1, 1, array.shape.size() == 1 ? 1 : array.shape[0], array.shape.back()};
  return made;
}

// A layer with widths of its own everywhere.
const LayerConfig uneven{.model_dim = 12,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 6,
                         .value_head_dim = 5,
                         .key_dim = 7,
                         .value_dim = 8,
                         .drop_probability = 0.5f,
                         .rotary = Rotary{.base = 500, .dims = 4, .pairs = RotaryPairs::adjacent},
                         .head_map = HeadMap::tiled};

heed_layer* make(const LayerWeights& w) {
  auto rotary = sized<heed_rotary>();
  rotary.base = 500;
  rotary.dims = 4;
  rotary.pairs = HEED_ROTARY_PAIRS_ADJACENT;
  auto told = sized<heed_layer_config>();
  std::tie(told.model_dim, told.heads, told.kv_heads, told.head_dim) = std::tuple(12, 4, 2, 6);
  std::tie(told.value_head_dim, told.key_dim, told.value_dim) = std::tuple(5, 7, 8);
  told.drop_probability = 0.5f;
  told.head_map = HEED_HEAD_MAP_TILED;
  told.rotary = &rotary;
  auto weights = sized<heed_layer_weights>();
  weights.w_q = matrix(w.w_q);
  weights.w_k = matrix(w.w_k);
  weights.w_v = matrix(w.w_v);
  weights.w_o = matrix(w.w_o);
  weights.b_q = matrix(*w.b_q);
  weights.b_k = matrix(*w.b_k);
  weights.b_v = matrix(*w.b_v);
  weights.b_o = matrix(*w.b_o);
  heed_layer* made = nullptr;
  EXPECT_EQ(heed_layer_create(&told, &weights, &made), HEED_OK) << heed_last_error();
  return made;
}

TEST(fields_in_c, those_of_a_layer_make_the_layer) {
  const LayerWeights weights = with_biases(random_weights(uneven, 1), 2);
  heed_layer* layer = make(weights);
  ASSERT_NE(layer, nullptr);
  const LayerConfig& made = layer->layer.config();
  EXPECT_EQ(
      std::tie(made.model_dim, made.heads, made.kv_heads, made.head_dim, made.value_head_dim),
      std::tie(uneven.model_dim, uneven.heads, uneven.kv_heads, uneven.head_dim, uneven.value_head_dim));
  EXPECT_EQ(
      std::tie(made.key_dim, made.value_dim, made.drop_probability, made.rotary, made.head_map),
      std::tie(uneven.key_dim, uneven.value_dim, uneven.drop_probability, uneven.rotary, uneven.head_map));
  EXPECT_TRUE(same_weights(layer->layer.weights(), weights));

  auto told = sized<heed_layer_config>();
  ASSERT_EQ(heed_layer_get_config(layer, &told), HEED_OK);
  EXPECT_EQ(std::tie(told.value_head_dim, told.key_dim, told.value_dim), std::tuple(5, 7, 8));
  EXPECT_EQ(told.drop_probability, 0.5f);
  EXPECT_EQ(told.head_map, HEED_HEAD_MAP_TILED);
  EXPECT_EQ(std::tie(told.rotary->base, told.rotary->dims, told.rotary->pairs),
            std::tuple(500, 4, HEED_ROTARY_PAIRS_ADJACENT));
  heed_layer_destroy(layer);
}

TEST(fields_in_c, those_of_a_call_are_the_call) {
  heed_layer* layer = make(with_biases(random_weights(uneven, 1), 2));
  ASSERT_NE(layer, nullptr);
  const Tensor x = random_tensor({2, 1, 3, 12}, 1), context = random_tensor({2, 1, 4, 7}, 2),
               value = random_tensor({2, 1, 4, 8}, 3);
  const std::vector<std::int64_t> positions = counted(3, 10), key_positions = counted(4, 20);
  heed_layer_set_mode(layer, HEED_MODE_TRAIN);
  const Tensor wanted = run(layer->layer, {.x = x.view(),
                                           .context = context.view(),
                                           .value = value.view(),
                                           .positions = positions,
                                           .key_positions = key_positions,
                                           .dropout_seed = 7});
  auto call = sized<heed_call>();
  call.x = in_c::view(x.view());
  call.context = in_c::view(context.view());
  call.value = in_c::view(value.view());
  call.positions = in_c::list(positions);
  call.key_positions = in_c::list(key_positions);
  call.dropout_seed = 7;
  Tensor y = output(x.shape);
  const heed_outputs outputs = in_c::outputs({.out = y.mutable_view()});
  EXPECT_EQ(heed_layer_call(layer, &call, &outputs, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(bit_misses(y.values, wanted.values), 0);
  heed_layer_destroy(layer);
}

TEST(fields_in_c, those_of_gradients_and_parameters_are_those_of_cpp) {
  const LayerWeights weights = with_biases(random_weights(uneven, 1), 2);
  heed_layer* layer = make(weights);
  ASSERT_NE(layer, nullptr);
  AttentionLayer wanted(uneven, weights);
  const Tensor x = random_tensor({2, 1, 3, 12}, 1), context = random_tensor({2, 1, 4, 7}, 2),
               value = random_tensor({2, 1, 4, 8}, 3), by_out = random_tensor({2, 1, 3, 12}, 4),
               by_sum = random_tensor({2, 4, 3, 1}, 5);
  Tensor by[2][3] = {{output(x.shape), output(context.shape), output(value.shape)},
                     {output(x.shape), output(context.shape), output(value.shape)}};
  wanted.backward({.x = x.view(), .context = context.view(), .value = value.view()},
                  {.out = by_out.view(),
                   .log_sum_exp = by_sum.view(),
                   .x = by[0][0].mutable_view(),
                   .context = by[0][1].mutable_view(),
                   .value = by[0][2].mutable_view()});
  auto call = sized<heed_call>();
  call.x = in_c::view(x.view());
  call.context = in_c::view(context.view());
  call.value = in_c::view(value.view());
  auto gradients = sized<heed_layer_gradients>();
  gradients.out = in_c::view(by_out.view());
  gradients.log_sum_exp = in_c::view(by_sum.view());
  gradients.x = in_c::view(by[1][0].mutable_view());
  gradients.context = in_c::view(by[1][1].mutable_view());
  gradients.value = in_c::view(by[1][2].mutable_view());
  ASSERT_EQ(heed_layer_backward(layer, &call, &gradients, nullptr), HEED_OK) << heed_last_error();
  for (const int n : {0, 1, 2}) EXPECT_EQ(bit_misses(by[1][n].values, by[0][n].values), 0) << n;

  auto values = sized<heed_parameters>(), sums = sized<heed_parameters>();
  ASSERT_EQ(heed_layer_get_parameters(layer, &values), HEED_OK) << heed_last_error();
  ASSERT_EQ(heed_layer_get_gradients(layer, &sums), HEED_OK) << heed_last_error();
  const auto all = [](const heed_parameters& p) {
    return std::array{p.w_q, p.w_k, p.w_v, p.w_o, p.b_q, p.b_k, p.b_v, p.b_o};
  };
  const auto expect_same = [](const heed_mutable_view& found, const Parameter& parameter) {
    const Shape& shape = parameter.values.shape;
    ASSERT_EQ(std::tie(found.shape.length, found.shape.dim), std::tie(shape.length, shape.dim));
    EXPECT_EQ(std::memcmp(found.data, parameter.values.data, static_cast<std::size_t>(shape.elements()) * 4),
              0)
        << parameter.name;
  };
  for (std::size_t n = 0; n < 8; ++n) {
    expect_same(all(values)[n], wanted.parameters()[n]);
    expect_same(all(sums)[n], wanted.gradients()[n]);
  }
  heed_layer_destroy(layer);
}

TEST(fields_in_c, sequences_and_counts_say_which_tokens_enter_the_cache) {
  const LayerConfig plain = grouped_query(8, 2, 1);
  heed_layer layer{AttentionLayer(plain, random_weights(plain, 1)), 0, {}};
  heed_cache cache{KvCache({.batch = 3, .kv_heads = 1, .capacity = 16, .dim = 4})};
  const Tensor x = random_tensor({2, 1, 3, 8}, 1);
  const std::int64_t sequences[] = {2, 0}, counts[] = {1, 3};
  auto call = sized<heed_call>();
  call.x = in_c::view(x.view());
  call.cache = &cache;
  call.sequences = in_c::list(sequences);
  call.counts = in_c::list(counts);
  Tensor y = output(x.shape);
  const heed_outputs outputs = in_c::outputs({.out = y.mutable_view()});
  EXPECT_EQ(heed_layer_call(&layer, &call, &outputs, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(cache.cache.lengths(), (std::vector<std::optional<std::int64_t>>{3, 0, 1}));
}

TEST(fields_in_c, those_of_a_cache_make_the_cache) {
  auto told = sized<heed_cache_config>();
  std::tie(told.batch, told.kv_heads, told.capacity, told.dim) = std::tuple(3, 2, 100, 6);
  std::tie(told.value_dim, told.page_size, told.pages) = std::tuple(5, 32, 9);
  told.window = {40, 4};
  told.type = HEED_CACHE_TYPE_BF16;
  heed_cache* cache = nullptr;
  ASSERT_EQ(heed_cache_create(&told, &cache), HEED_OK) << heed_last_error();
  const KvCacheConfig& made = cache->cache.config();
  EXPECT_EQ(std::tie(made.batch, made.kv_heads, made.capacity, made.dim), std::tuple(3, 2, 100, 6));
  EXPECT_EQ(std::tie(*made.value_dim, *made.page_size, *made.pages), std::tuple(5, 32, 9));
  EXPECT_EQ(std::tie(made.window->length, made.window->front), std::tuple(40, 4));
  EXPECT_EQ(made.type, CacheType::bf16);
  EXPECT_FALSE(made.rotary);
  heed_cache_destroy(cache);
}

}  // namespace
}  // namespace heed::layer_tests
