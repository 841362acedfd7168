// SPDX-License-Identifier: Apache-2.0
// Weights that are lent with a call: the bits of a layer made of them, whatever their strides and types, and
// what is changed between two calls counts at the next.
#include <string>

#include "heed/cache.hpp"
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

// Widths that fill no panel of any instruction set, and some that fill all.
struct Size {
  std::int64_t model_dim, heads, kv_heads;
};
constexpr Size sizes[] = {{10, 2, 1}, {36, 6, 2}, {160, 5, 1}, {256, 4, 2}};

DType dtype_of(Element element) {
  return element == Element::f16 ? DType::f16 : element == Element::bf16 ? DType::bf16 : DType::f32;
}

LayerWeights weights_of(const LayerConfig& config, Element element) {
  LayerWeights w = with_biases(random_weights(config, 3), 4);
  for (Array* matrix : {&w.w_q, &w.w_k, &w.w_v, &w.w_o})
    *matrix = Array::from_floats(matrix->shape, matrix->to_floats(), element);
  return w;
}

View view_of(const Array& x) {
  const bool is_matrix = x.shape.size() == 2;
  return {x.data.data(), Shape{1, 1, is_matrix ? x.shape[0] : 1, x.shape.back()}, dtype_of(x.element)};
}

LayerViews views_of(const LayerWeights& w) {
  return {view_of(w.w_q),  view_of(w.w_k),  view_of(w.w_v),  view_of(w.w_o),
          view_of(*w.b_q), view_of(*w.b_k), view_of(*w.b_v), view_of(*w.b_o)};
}

// A matrix that lies column after column.
struct Transposed {
  std::vector<float> values;
  Shape shape;

  explicit Transposed(const Array& x) : shape{1, 1, x.shape[0], x.shape[1]} {
    const std::vector<float> rows = x.to_floats();
    values.resize(rows.size());
    for (std::int64_t i = 0; i < shape.length; ++i)
      for (std::int64_t j = 0; j < shape.dim; ++j)
        values[static_cast<std::size_t>(j * shape.length + i)] =
            rows[static_cast<std::size_t>(i * shape.dim + j)];
  }
  View view() const { return {values, shape, Strides{0, 0, 1, shape.length}}; }
};

TEST(lent_weights, give_the_bits_of_a_layer_made_of_them) {
  for (const Size& s : sizes)
    for (const Element element : {Element::f32, Element::f16, Element::bf16})
      for (const std::int64_t tokens : {1, 2, 3, 4, 5, 37, 200}) {
        const LayerConfig config = grouped_query(s.model_dim, s.heads, s.kv_heads);
        const LayerWeights weights = weights_of(config, element);
        const LayerViews views = views_of(weights);
        const Tensor x = random_tensor({2, 1, tokens, s.model_dim}, 7);
        const Tensor of_its_own =
            run(AttentionLayer(config, weights), {.x = x.view()}, {.masks = {Causal{}}});
        const Tensor of_lent =
            run(AttentionLayer(config), {.x = x.view(), .weights = &views}, {.masks = {Causal{}}});
        EXPECT_EQ(bit_misses(of_lent.values, of_its_own.values), 0)
            << "model_dim " << s.model_dim << ", " << name_of(element) << ", " << tokens << " tokens";
      }
}

TEST(lent_weights, in_bf16_with_an_x_in_bf16_give_the_bits_of_a_layer_made_of_them) {
  const LayerConfig config = grouped_query(96, 4, 2);
  const LayerWeights weights = weights_of(config, Element::bf16);
  const LayerViews views = views_of(weights);
  std::vector<bf16> x;
  for (const float value : random_floats(2 * 37 * 96, 5)) x.push_back(from_float<bf16>(value));
  const View x_view(x, {2, 1, 37, 96});
  EXPECT_EQ(bit_misses(run(AttentionLayer(config), {.x = x_view, .weights = &views}).values,
                       run(AttentionLayer(config, weights), {.x = x_view}).values),
            0);
}

TEST(lent_weights, may_lie_column_after_column) {
  const LayerConfig config = grouped_query(36, 6, 2);
  const LayerWeights weights = with_biases(random_weights(config, 3), 4);
  const Transposed q(weights.w_q), k(weights.w_k), v(weights.w_v), o(weights.w_o);
  LayerViews views = views_of(weights);
  views.w_q = q.view(), views.w_k = k.view(), views.w_v = v.view(), views.w_o = o.view();
  for (const std::int64_t tokens : {1, 3, 20}) {
    const Tensor x = random_tensor({1, 1, tokens, 36}, 7);
    EXPECT_EQ(bit_misses(run(AttentionLayer(config), {.x = x.view(), .weights = &views}).values,
                         run(AttentionLayer(config, weights), {.x = x.view()}).values),
              0);
  }
}

TEST(lent_weights, that_change_between_two_calls_count_at_the_second) {
  const LayerConfig config = multi_head(12, 2);
  LayerWeights weights = with_biases(random_weights(config, 3), 4);
  const LayerViews views = views_of(weights);
  const AttentionLayer layer(config);
  const Tensor x = random_tensor({1, 1, 5, 12}, 7);
  run(layer, {.x = x.view(), .weights = &views});
  for (std::byte& byte : weights.w_v.data) byte ^= std::byte{1};
  EXPECT_EQ(bit_misses(run(layer, {.x = x.view(), .weights = &views}).values,
                       run(AttentionLayer(config, weights), {.x = x.view()}).values),
            0);
}

TEST(lent_weights, go_with_a_cache) {
  const LayerConfig config = grouped_query(24, 4, 2);
  const LayerWeights weights = with_biases(random_weights(config, 3), 4);
  const LayerViews views = views_of(weights);
  const auto make_cache = [] { return KvCache({.batch = 1, .kv_heads = 2, .capacity = 16, .dim = 6}); };
  KvCache lent_cache = make_cache(), own_cache = make_cache();
  const AttentionLayer lent(config), own(config, weights);
  for (const unsigned seed : {1u, 2u, 3u}) {
    const Tensor x = random_tensor({1, 1, 1, 24}, seed);
    EXPECT_EQ(bit_misses(run(lent, {.x = x.view(), .cache = &lent_cache, .weights = &views}).values,
                         run(own, {.x = x.view(), .cache = &own_cache}).values),
              0);
  }
}

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing is refused";
}

TEST(lent_weights, that_do_not_fit_are_refused_by_name) {
  const LayerConfig config = multi_head(12, 2);
  LayerWeights weights = with_biases(random_weights(config, 3), 4);
  const AttentionLayer layer(config);
  const Tensor x = random_tensor({1, 1, 5, 12}, 7);
  const auto call_with = [&](const LayerViews& views) {
    return refusal_of([&] { run(layer, {.x = x.view(), .weights = &views}); });
  };
  LayerViews views = views_of(weights);
  views.w_k.shape.length = 11;
  EXPECT_EQ(call_with(views), "weights.w_k.shape: (1, 1, 11, 12) is not (1, 1, 12, 12)");
  views = views_of(weights);
  views.b_o->shape.dim = 3;
  EXPECT_EQ(call_with(views), "weights.b_o.shape: (1, 1, 1, 3) is not (1, 1, 1, 12)");
  EXPECT_EQ(refusal_of([&] { run(layer, {.x = x.view()}); }),
            "weights: none are given, and the layer has none of its own");
}

TEST(lent_weights, cannot_be_written_over) {
  const LayerConfig config = multi_head(12, 2);
  LayerWeights weights = with_biases(random_weights(config, 3), 4);
  const LayerViews views = views_of(weights);
  const Tensor x = random_tensor({1, 1, 12, 12}, 7);
  const MutableView onto(weights.w_q.data.data(), Shape{1, 1, 12, 12}, DType::f32);
  const AttentionLayer layer(config);
  const std::string refusal = refusal_of([&] { layer({.x = x.view(), .weights = &views}, {.out = onto}); });
  EXPECT_NE(refusal.find("weights.w_q"), std::string::npos) << refusal;
}

TEST(a_layer_without_weights, has_nothing_to_train) {
  AttentionLayer layer(multi_head(12, 2));
  const char* const sentence = "weights: none are given, and the layer has none of its own";
  EXPECT_EQ(refusal_of([&] { layer.parameters(); }), sentence);
  EXPECT_EQ(refusal_of([&] { layer.gradients(); }), sentence);
  EXPECT_EQ(refusal_of([&] { layer.update(); }), sentence);
  EXPECT_EQ(refusal_of([&] { layer.backward({}, {}); }), sentence);
}

}  // namespace
}  // namespace heed::layer_tests
