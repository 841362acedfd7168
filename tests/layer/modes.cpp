// SPDX-License-Identifier: Apache-2.0
// Train and eval (S7): only training drops, and a call never changes the mode.
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

using Mode = AttentionLayer::Mode;

struct Layers {
  LayerConfig dropping{.model_dim = 16, .heads = 4, .kv_heads = 2, .drop_probability = 0.5f};
  LayerWeights weights = random_weights(dropping, 1);
  Tensor x = random_tensor({2, 1, 8, 16}, 2);
};

TEST(modes, a_new_layer_evaluates) {
  const Layers l;
  EXPECT_EQ(AttentionLayer(l.dropping, l.weights).mode(), Mode::eval);
}

TEST(modes, evaluation_never_drops) {
  const Layers l;
  const AttentionLayer dropping(l.dropping, l.weights), plain(grouped_query(16, 4, 2), l.weights);
  EXPECT_EQ(bit_misses(run(dropping, {.x = l.x.view(), .dropout_seed = 3}).values,
                       run(plain, {.x = l.x.view()}).values),
            0);
}

TEST(modes, training_without_dropout_is_bitwise_evaluation) {
  const Layers l;
  AttentionLayer plain(grouped_query(16, 4, 2), l.weights);
  const Tensor evaluated = run(plain, {.x = l.x.view()});
  plain.set_mode(Mode::train);
  EXPECT_EQ(bit_misses(run(plain, {.x = l.x.view(), .dropout_seed = 3}).values, evaluated.values), 0);
}

TEST(modes, a_call_leaves_the_mode_alone) {
  const Layers l;
  AttentionLayer layer(l.dropping, l.weights);
  for (const Mode mode : {Mode::train, Mode::eval, Mode::train}) {
    layer.set_mode(mode);
    run(layer, {.x = l.x.view()});
    EXPECT_EQ(layer.mode(), mode);
  }
}

TEST(modes, a_moved_layer_keeps_its_mode) {
  const Layers l;
  AttentionLayer layer(l.dropping, l.weights);
  layer.set_mode(Mode::train);
  const AttentionLayer moved = std::move(layer);
  EXPECT_EQ(moved.mode(), Mode::train);
  run(moved, {.x = l.x.view()});
}

TEST(modes, training_drops_as_the_seed_says) {
  const Layers l;
  AttentionLayer layer(l.dropping, l.weights);
  const Tensor evaluated = run(layer, {.x = l.x.view()});
  layer.set_mode(Mode::train);
  const Tensor once = run(layer, {.x = l.x.view(), .dropout_seed = 3});
  EXPECT_EQ(bit_misses(run(layer, {.x = l.x.view(), .dropout_seed = 3}).values, once.values), 0);
  EXPECT_NE(bit_misses(run(layer, {.x = l.x.view(), .dropout_seed = 4}).values, once.values), 0);
  EXPECT_NE(bit_misses(once.values, evaluated.values), 0);
}

TEST(modes, a_weight_in_training_is_dropped_or_scaled) {
  const Layers l;
  AttentionLayer layer(l.dropping, l.weights);
  Tensor y = output({2, 1, 8, 16}), evaluated = output({2, 4, 8, 8}), trained = evaluated;
  layer({.x = l.x.view()}, {.out = y.mutable_view(), .weights = evaluated.mutable_view()});
  layer.set_mode(Mode::train);
  layer({.x = l.x.view(), .dropout_seed = 5}, {.out = y.mutable_view(), .weights = trained.mutable_view()});
  std::int64_t dropped = 0, scaled = 0;
  for (std::size_t n = 0; n < trained.values.size(); ++n) {
    if (trained.values[n] == 0) ++dropped;
    if (std::abs(trained.values[n] - 2 * evaluated.values[n]) < 1e-6f) ++scaled;
  }
  EXPECT_EQ(dropped + scaled, 512);
  EXPECT_GT(dropped, 128);
  EXPECT_GT(scaled, 128);
}

}  // namespace
}  // namespace heed::layer_tests
