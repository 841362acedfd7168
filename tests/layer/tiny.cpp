// SPDX-License-Identifier: Apache-2.0
// Layers small enough to compute by hand.
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

Array matrix(std::int64_t rows, std::int64_t columns, const std::vector<float>& values) {
  return Array::from_floats({rows, columns}, values);
}

// One head of one dimension: q = k = x, v = 2x, y = 3 * attended + 0.5. At x = (0, 1) the first query scores
// (0, 0) and attends to v's mean, 1; the second scores (0, 1) and attends to 2e / (1 + e).
TEST(tiny_layers, one_head_of_one_dimension) {
  LayerWeights w{matrix(1, 1, {1}), matrix(1, 1, {1}), matrix(1, 1, {2}), matrix(1, 1, {3})};
  w.b_o = Array::from_floats({1}, {0.5f});
  const AttentionLayer layer(multi_head(1, 1), w);
  const Tensor x{{1, 1, 2, 1}, {0, 1}};
  const Tensor y = run(layer, {.x = x.view()});
  const double e = std::exp(1.0);
  EXPECT_EQ(far_misses(y.values, std::vector<double>{3.5, 6 * e / (1 + e) + 0.5}, 1e-6), 0);
}

// Zero queries attend to the mean of V. V's rows are x's swapped, and W_o adds both columns into the first.
TEST(tiny_layers, zero_queries_average_the_values) {
  const AttentionLayer layer(multi_head(2, 2), {matrix(2, 2, {0, 0, 0, 0}), matrix(2, 2, {1, 2, 3, 4}),
                                                matrix(2, 2, {0, 1, 1, 0}), matrix(2, 2, {1, 1, 0, -1})});
  const Tensor x{{1, 1, 2, 2}, {1, 10, 3, 20}};  // values (10, 1) and (20, 3), mean (15, 2)
  const Tensor y = run(layer, {.x = x.view()});
  EXPECT_EQ(far_misses(y.values, std::vector<double>{17, -2, 17, -2}, 1e-5), 0);
}

// Two query heads of one dimension share a KV head: head 0 asks with +x, head 1 with -x, and W_o keeps them
// apart.
TEST(tiny_layers, two_query_heads_share_a_kv_head) {
  const AttentionLayer layer(
      {.model_dim = 2, .heads = 2, .kv_heads = 1},
      {matrix(2, 2, {1, 0, -1, 0}), matrix(1, 2, {1, 0}), matrix(1, 2, {0, 1}), matrix(2, 2, {1, 0, 0, 1})});
  const Tensor x{{1, 1, 2, 2}, {1, 4, -1, 8}};  // keys (1, -1), values (4, 8)
  const Tensor y = run(layer, {.x = x.view()});
  const double near = 1 / (1 + std::exp(-2.0)), far = 1 - near;
  const double to_first = 4 * near + 8 * far, to_second = 4 * far + 8 * near;
  EXPECT_EQ(far_misses(y.values, std::vector<double>{to_first, to_second, to_second, to_first}, 1e-5), 0);
}

// With no key to see, the attended heads are zeros and the output is the bias alone.
TEST(tiny_layers, an_empty_context_yields_the_output_bias) {
  LayerWeights w = with_biases(random_weights(multi_head(4, 2), 1), 2);
  const AttentionLayer layer(multi_head(4, 2), w);
  const Tensor x = random_tensor({2, 1, 3, 4}, 3), nothing = random_tensor({2, 1, 0, 4}, 4);
  const Tensor y = run(layer, {.x = x.view(), .context = nothing.view()});
  const std::vector<float> bias = w.b_o->to_floats();
  std::vector<float> wanted;
  for (int row = 0; row < 6; ++row) wanted.insert(wanted.end(), bias.begin(), bias.end());
  EXPECT_EQ(bit_misses(y.values, wanted), 0);
}

TEST(tiny_layers, no_batch_and_no_queries_give_an_empty_result) {
  const AttentionLayer layer(multi_head(4, 2), random_weights(multi_head(4, 2), 1));
  Tensor out = output({1, 1, 1, 4});
  for (const Shape& empty : {Shape{0, 1, 3, 4}, Shape{2, 1, 0, 4}}) {
    float* const nowhere = nullptr;
    const View x{nowhere, empty};
    layer({.x = x}, {.out = {out.values, empty}});
    layer({.x = x}, {.out = {nowhere, empty}});
  }
  EXPECT_EQ(bit_misses(out.values, std::vector<float>(4, untouched)), 0);
}

}  // namespace
}  // namespace heed::layer_tests
