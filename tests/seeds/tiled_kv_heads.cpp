// SPDX-License-Identifier: Apache-2.0
// Seed 002: multi-head attention, and grouped-query attention whose K and V heads are tiled, not repeated.
#include "cases/seed_layer.hpp"

namespace heed::cases {
namespace {

constexpr std::int64_t model = 48, heads = 6, groups = 2, d_k = 8;

LayerWeights weights_for(std::int64_t kv_heads) {
  return {.w_q = weight_matrix({203, model, model, 0.5f}),
          .w_k = weight_matrix({205, model, kv_heads * d_k, 0.5f}),
          .w_v = weight_matrix({206, model, kv_heads * d_k, 0.5f}),
          .w_o = weight_matrix({204, model, model, 0.5f})};
}

LayerResult run_layer(const LayerConfig& config, const LayerWeights& weights) {
  const Tensor q = sequence(200, 2, 6, model), k = sequence(201, 2, 6, model), v = sequence(202, 2, 6, model);
  return run(AttentionLayer(config, weights), {q, k, v, heads});
}

LayerConfig tiled() {
  LayerConfig config = grouped_query(model, heads, groups);
  config.head_map = HeadMap::tiled;
  return config;
}

TEST(Seed002, multi_head_attention) {
  EXPECT_TRUE(matches_fixture("seed_002_mha", run_layer(multi_head(model, heads), weights_for(heads)).out));
}

TEST(Seed002, a_tiled_expansion_gives_head_h_the_group_h_mod_groups) {
  const LayerResult result = run_layer(tiled(), weights_for(groups));
  EXPECT_TRUE(matches_fixture("seed_002_gqa_tiled", result.out));
  EXPECT_TRUE(matches_fixture("seed_002_gqa_tiled_weights", result.weights));
}

TEST(Seed002, the_interleaved_map_would_give_another_answer) {
  const LayerResult result = run_layer(grouped_query(model, heads, groups), weights_for(groups));
  EXPECT_FALSE(matches_fixture("seed_002_gqa_tiled", result.out));
}

TEST(Seed002, interleave_heads_makes_a_tiled_checkpoint_work_with_the_interleaved_map) {
  const LayerWeights permuted = interleave_heads(weights_for(groups), heads, groups);
  const LayerResult result = run_layer(grouped_query(model, heads, groups), permuted);
  EXPECT_TRUE(matches_fixture("seed_002_gqa_tiled", result.out));
  // The heads moved: interleaved head n is the tiled head that reads the same group, in order.
  const LayerResult original = run_layer(tiled(), weights_for(groups));
  const std::int64_t per_group = heads / groups;
  Tensor moved(original.weights.shape());
  for_each(moved.shape(), [&](auto b, auto h, auto i, auto j) {
    moved.set(b, h, i, j, original.weights.at(b, (h % per_group) * groups + h / per_group, i, j));
  });
  EXPECT_TRUE(same_bits(result.weights, moved));
}

}  // namespace
}  // namespace heed::cases
