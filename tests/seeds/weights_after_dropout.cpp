// SPDX-License-Identifier: Apache-2.0
// Seed 003: multi-head attention with biases, mask == 0 blocked, weights returned after dropout.
#include <cmath>

#include "cases/seed_layer.hpp"

namespace heed::cases {
namespace {

constexpr std::int64_t model = 32, heads = 4, length = 7;
constexpr float drop_probability = 0.25f;

Array bias_of(std::uint64_t stream) { return array_of({model}, uniforms(stream, model)); }

AttentionLayer make_layer() {
  LayerConfig config = multi_head(model, heads);
  config.drop_probability = drop_probability;
  return {config,
          {.w_q = weight_matrix({303, model, model, 0.5f}),
           .w_k = weight_matrix({304, model, model, 0.5f}),
           .w_v = weight_matrix({305, model, model, 0.5f}),
           .w_o = weight_matrix({306, model, model, 0.5f}),
           .b_q = bias_of(307),
           .b_k = bias_of(308),
           .b_v = bias_of(309),
           .b_o = bias_of(310)}};
}

BoolTensor stored_mask() {
  const Fixture stored = load_fixture("seed_003_mask");
  BoolTensor mask({2, 1, length, length});
  for (std::size_t n = 0; n < stored.values.size(); ++n)
    mask.data[static_cast<std::ptrdiff_t>(n)] = stored.values[n] != 0;
  return mask;
}

LayerResult run_layer(const AttentionLayer& layer, const BoolTensor& mask, std::uint64_t dropout_seed = 0) {
  const Tensor q = sequence(300, 2, length, model), k = sequence(301, 2, length, model),
               v = sequence(302, 2, length, model);
  return run(layer, {q, k, v, heads, {.masks = {Keep{mask.view()}}}, dropout_seed});
}

TEST(Seed003, keep_blocks_where_the_mask_is_zero_and_returns_the_weights) {
  const LayerResult result = run_layer(make_layer(), stored_mask());
  EXPECT_TRUE(matches_fixture("seed_003_mha", result.out));
  EXPECT_TRUE(matches_fixture("seed_003_mha_weights", result.weights));
}

TEST(Seed003, evaluation_ignores_the_drop_probability_and_its_seed) {
  AttentionLayer layer = make_layer();
  const LayerResult first = run_layer(layer, stored_mask(), 1);
  layer.set_mode(AttentionLayer::Mode::train);
  run_layer(layer, stored_mask(), 2);
  layer.set_mode(AttentionLayer::Mode::eval);
  EXPECT_TRUE(same_bits(run_layer(layer, stored_mask(), 3).out, first.out));
}

TEST(Seed003, training_drops_weights_scales_survivors_and_returns_what_it_applied) {
  AttentionLayer layer = make_layer();
  layer.set_mode(AttentionLayer::Mode::train);
  const LayerResult result = run_layer(layer, stored_mask(), 9);
  const Fixture weights = load_fixture("seed_003_mha_weights"),
                bound = load_fixture("seed_003_mha_weights.bound");
  const double kept = 1 - static_cast<double>(drop_probability);
  Tally survivors;
  std::int64_t dropped = 0, visible = 0;
  std::size_t n = 0;
  for_each(result.weights.shape(), [&](auto b, auto h, auto i, auto j) {
    const double full = weights.values[n], w = result.weights.at(b, h, i, j);
    if (full > 0) ++visible;
    if (full > 0 && w == 0) ++dropped;
    if (w != 0 || full == 0)
      survivors.compare("weights", Place{b, h, i, j}, w, full / kept, 2 * bound.values[n] / kept);
    ++n;
  });
  EXPECT_TRUE(survivors);
  const double expected = (1 - kept) * static_cast<double>(visible);
  EXPECT_NEAR(static_cast<double>(dropped), expected,
              6 * std::sqrt(expected * kept));  // six standard deviations
  EXPECT_TRUE(same_bits(run_layer(layer, stored_mask(), 9).weights, result.weights));
  EXPECT_FALSE(same_bits(run_layer(layer, stored_mask(), 10).weights, result.weights));
}

TEST(Seed003, the_output_is_made_of_the_weights_that_were_returned) {
  AttentionLayer layer = make_layer();
  layer.set_mode(AttentionLayer::Mode::train);
  const LayerResult result = run_layer(layer, stored_mask(), 9);
  const Fixture v = load_fixture("seed_003_values"), bound = load_fixture("seed_003_mha.bound");
  const std::vector<float> w_o = uniforms(306, model * model, 0.5f), b_o = uniforms(310, model);
  Tally tally;
  std::size_t n = 0;
  for_each(result.out.shape(), [&](auto b, auto, auto i, auto column) {
    double y = b_o[static_cast<std::size_t>(column)];
    for (std::int64_t c = 0; c < model; ++c) {
      const std::int64_t h = c / 8, d = c % 8;
      double mixed = 0;
      for (std::int64_t j = 0; j < length; ++j)
        mixed += static_cast<double>(result.weights.at(b, h, i, j)) *
                 v.values[static_cast<std::size_t>(((b * heads + h) * length + j) * 8 + d)];
      y += mixed * static_cast<double>(w_o[static_cast<std::size_t>(c * model + column)]);
    }
    // Survivors are scaled, and so is their error.
    tally.compare("out", Place{b, 0, i, column}, result.out.at(b, 0, i, column), y,
                  bound.values[n] / (1 - drop_probability));
    ++n;
  });
  EXPECT_TRUE(tally);
}

TEST(Seed003, a_query_whose_mask_is_all_zero_yields_only_the_output_bias) {
  BoolTensor mask = stored_mask();
  for (std::int64_t j = 0; j < length; ++j) mask.at(1, 0, 2, j) = false;
  const LayerResult result = run_layer(make_layer(), mask);
  const std::vector<float> b_o = uniforms(310, model);
  for (std::int64_t c = 0; c < model; ++c)
    EXPECT_EQ(result.out.at(1, 0, 2, c), b_o[static_cast<std::size_t>(c)]);
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t j = 0; j < length; ++j) EXPECT_EQ(result.weights.at(1, h, 2, j), 0.0f);
}

}  // namespace
}  // namespace heed::cases
