// SPDX-License-Identifier: Apache-2.0
// Layers whose inputs and weights are bf16, which matrix instructions multiply where there are some: what O3
// and S16 promise.
#include <algorithm>
#include <string>

#include "heed/gradient.hpp"
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

// Widths that fill no panel, tile or step of any instruction set, and some that fill all.
struct Size {
  std::int64_t model_dim, heads, kv_heads;
};
constexpr Size sizes[] = {{36, 6, 2}, {96, 4, 4}, {160, 5, 1}};
constexpr Size wide_size{1400, 4, 1};  // more inputs than are multiplied at a time

LayerConfig config_of(const Size& s) { return grouped_query(s.model_dim, s.heads, s.kv_heads); }

// Weights that bf16 holds, as bf16 and as f32.
LayerWeights weights_of(const LayerConfig& config, Element element) {
  LayerWeights w = with_biases(random_weights(config, 3), 4);
  for (Array* matrix : {&w.w_q, &w.w_k, &w.w_v, &w.w_o}) {
    const Array rounded = Array::from_floats(matrix->shape, matrix->to_floats(), Element::bf16);
    *matrix = Array::from_floats(matrix->shape, rounded.to_floats(), element);
  }
  return w;
}

struct Halves {
  Shape shape;
  std::vector<bf16> values;

  static Halves random(const Shape& shape, unsigned seed) {
    Halves made{shape, {}};
    for (const float value : random_floats(shape.elements(), seed))
      made.values.push_back(from_float<bf16>(value));
    return made;
  }
  View view() const { return {values, shape}; }
  Tensor widened() const {
    Tensor made{shape, {}};
    for (const bf16 value : values) made.values.push_back(to_float(value));
    return made;
  }
  // The first `length` tokens of the only sequence.
  Halves first(std::int64_t length) const {
    return {{1, 1, length, shape.dim}, {values.begin(), values.begin() + length * shape.dim}};
  }
};

TEST(bf16_layers, are_as_far_from_f32_as_storing_heads_in_bf16_takes_them) {
  for (const Size& s : {sizes[0], sizes[1], sizes[2], wide_size}) {
    const LayerConfig config = config_of(s);
    const AttentionLayer narrow(config, weights_of(config, Element::bf16)),
        wide(config, weights_of(config, Element::f32));
    const Halves x = Halves::random({2, 1, s.model_dim > 1000 ? 20 : 37, s.model_dim}, 7);
    const std::vector<float> found = run(narrow, {.x = x.view()}, causal).values,
                             wanted = run(wide, {.x = x.widened().view()}, causal).values;
    float largest = 0;
    for (const float value : wanted) largest = std::max(largest, std::abs(value));
    // A query or key, a value and a context are each stored once.
    EXPECT_EQ(far_misses(found, wanted, 3 * 0x1p-8 * static_cast<double>(largest)), 0) << s.model_dim;
  }
}

// The kernel for gradients whose instructions multiply bf16, or none.
std::string matrix_kernel() {
  for (const std::string& name : backward_kernel_names())
    if (name.ends_with("bf16") || name.ends_with("amx")) return name;
  return "";
}

std::vector<float> input_gradient(AttentionLayer& layer, const View& x, const View& out_gradient,
                                  const Options& options) {
  Tensor dx = output(x.shape);
  layer.backward({.x = x}, {.out = out_gradient, .x = dx.mutable_view()}, options);
  return dx.values;
}

TEST(bf16_layers, go_back_by_matrix_instructions_as_far_from_f32_as_storing_in_bf16_takes_them) {
  for (const Size& s : sizes) {
    const LayerConfig config = config_of(s);
    AttentionLayer narrow(config, weights_of(config, Element::bf16)),
        wide(config, weights_of(config, Element::f32));
    const Halves x = Halves::random({2, 1, 37, s.model_dim}, 7),
                 dy = Halves::random({2, 1, 37, s.model_dim}, 8);
    Options options = causal;
    const std::vector<float> wanted = input_gradient(wide, x.widened().view(), dy.widened().view(), options);
    options.kernel = matrix_kernel();
    const std::vector<float> found = input_gradient(narrow, x.view(), dy.view(), options);
    float largest = 0;
    for (const float value : wanted) largest = std::max(largest, std::abs(value));
    // Q, K, V, what attention made of them, the gradient by it, the weights and those by the scores are each
    // stored once.
    EXPECT_EQ(far_misses(found, wanted, 7 * 0x1p-8 * static_cast<double>(largest)), 0) << s.model_dim;
  }
}

TEST(bf16_layers, have_rows_that_do_not_depend_on_how_many_there_are) {
  for (const Size& s : sizes) {
    const AttentionLayer layer(config_of(s), weights_of(config_of(s), Element::bf16));
    const Halves x = Halves::random({1, 1, 75, s.model_dim}, 8);
    const std::vector<float> all = run(layer, {.x = x.view()}, causal).values;
    for (const std::int64_t length : {1, 2, 5, 8, 16, 17, 32, 33, 70}) {
      const std::vector<float> some = run(layer, {.x = x.first(length).view()}, causal).values;
      EXPECT_EQ(bit_misses(some, {all.begin(), all.begin() + length * s.model_dim}), 0)
          << s.model_dim << ", " << length << " rows";
    }
  }
}

TEST(bf16_layers, fed_token_by_token_into_a_cache_of_bf16_have_the_rows_of_one_call) {
  for (const Size& s : sizes) {
    const AttentionLayer layer(config_of(s), weights_of(config_of(s), Element::bf16));
    const Halves x = Halves::random({1, 1, 20, s.model_dim}, 9);
    const auto fed = [&](std::int64_t step) {
      KvCache cache(
          {.kv_heads = s.kv_heads, .capacity = 32, .dim = s.model_dim / s.heads, .type = CacheType::bf16});
      std::vector<float> y;
      for (std::int64_t first = 0; first < 20; first += step) {
        const Halves part{
            {1, 1, step, s.model_dim},
            {x.values.begin() + first * s.model_dim, x.values.begin() + (first + step) * s.model_dim}};
        const Tensor rows = run(layer, {.x = part.view(), .cache = &cache}, causal);
        y.insert(y.end(), rows.values.begin(), rows.values.end());
      }
      return y;
    };
    const std::vector<float> whole = fed(20);
    for (const std::int64_t step : {1, 4, 10}) EXPECT_EQ(bit_misses(fed(step), whole), 0) << s.model_dim;
  }
}

TEST(bf16_layers, read_and_write_any_strides_with_the_same_bits) {
  const Size s = sizes[0];
  const AttentionLayer layer(config_of(s), weights_of(config_of(s), Element::bf16));
  const Halves x = Halves::random({2, 1, 9, s.model_dim}, 10);
  std::vector<bf16> packed(x.values.size()), spread(4 * x.values.size()), found(4 * x.values.size());
  layer({.x = x.view()}, {.out = {packed, x.shape}}, causal);
  const Strides stride{3, 999, 2 * 2 * s.model_dim, 4};  // batch entries interleaved, three gaps of four
  for (std::int64_t n = 0; n < x.shape.elements(); ++n) {
    const std::int64_t b = n / (9 * s.model_dim), i = n / s.model_dim % 9, d = n % s.model_dim;
    spread[static_cast<std::size_t>(b * 3 + i * stride.length + d * 4)] =
        x.values[static_cast<std::size_t>(n)];
  }
  layer({.x = {spread.data(), x.shape, stride}}, {.out = {found.data(), x.shape, stride}}, causal);
  std::int64_t misses = 0;
  for (std::int64_t n = 0; n < x.shape.elements(); ++n) {
    const std::int64_t b = n / (9 * s.model_dim), i = n / s.model_dim % 9, d = n % s.model_dim;
    misses += found[static_cast<std::size_t>(b * 3 + i * stride.length + d * 4)].bits !=
                      packed[static_cast<std::size_t>(n)].bits
                  ? 1
                  : 0;
  }
  EXPECT_EQ(misses, 0);
}

// W is packed a second time for it.
TEST(bf16_layers, take_an_x_in_f32_as_layers_of_f32_do) {
  for (const Size& s : sizes) {
    const LayerConfig config = config_of(s);
    const AttentionLayer narrow(config, weights_of(config, Element::bf16)),
        wide(config, weights_of(config, Element::f32));
    const Halves first = Halves::random({1, 1, 6, s.model_dim}, 11);
    run(narrow, {.x = first.view()});
    for (const std::int64_t length : {1, 30}) {
      const Tensor x = random_tensor({1, 1, length, s.model_dim}, 12);
      EXPECT_EQ(bit_misses(run(narrow, {.x = x.view()}).values, run(wide, {.x = x.view()}).values), 0)
          << s.model_dim << ", " << length << " rows";
    }
  }
}

}  // namespace
}  // namespace heed::layer_tests
