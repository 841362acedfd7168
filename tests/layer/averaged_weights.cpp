// SPDX-License-Identifier: Apache-2.0
// What the layer returns beside its output: weights per head or averaged, log-sum-exp, scores, in any dtype.
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

constexpr Shape x_shape{2, 1, 5, 12}, per_head_shape{2, 4, 5, 5}, averaged_shape{2, 1, 5, 5};

Tensor mean_over_heads(const Tensor& per_head) {
  Tensor mean = output(averaged_shape);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t n = 0; n < 25; ++n) {
      float sum = per_head.at(b, 0, 0, n);
      for (std::int64_t h = 1; h < 4; ++h) sum += per_head.at(b, h, 0, n);
      mean.values[mean.index(b, 0, 0, n)] = sum / 4;
    }
  return mean;
}

struct Returned {
  LayerConfig config{.model_dim = 12, .heads = 4, .kv_heads = 2, .drop_probability = 0.25f};
  AttentionLayer layer{config, random_weights(config, 1)};
  Tensor x = random_tensor(x_shape, 2), y = output(x_shape);
};

TEST(returned_weights, averaged_ones_are_the_mean_of_the_heads) {
  Returned r;
  for (const auto mode : {AttentionLayer::Mode::eval, AttentionLayer::Mode::train}) {
    r.layer.set_mode(mode);
    Tensor per_head = output(per_head_shape), averaged = output(averaged_shape), y = r.y, z = r.y;
    const AttentionLayer::Call call{.x = r.x.view(), .dropout_seed = 9};
    r.layer(call, {.out = y.mutable_view(), .weights = per_head.mutable_view()}, {.masks = {Causal{}}});
    r.layer(call, {.out = z.mutable_view(), .weights = averaged.mutable_view()}, {.masks = {Causal{}}});
    EXPECT_EQ(bit_misses(averaged.values, mean_over_heads(per_head).values), 0);
    EXPECT_EQ(bit_misses(y.values, z.values), 0);
    EXPECT_EQ(bit_misses(run(r.layer, call, {.masks = {Causal{}}}).values, y.values), 0);
  }
}

TEST(returned_weights, rows_sum_to_one) {
  Returned r;
  Tensor averaged = output(averaged_shape);
  r.layer({.x = r.x.view()}, {.out = r.y.mutable_view(), .weights = averaged.mutable_view()});
  std::int64_t misses = 0;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < 5; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < 5; ++j) sum += static_cast<double>(averaged.at(b, 0, i, j));
      misses += std::abs(sum - 1) > 1e-6 ? 1 : 0;
    }
  EXPECT_EQ(misses, 0);
}

TEST(returned_weights, a_layer_of_one_head_returns_it_as_it_is) {
  const AttentionLayer layer(multi_head(12, 1), random_weights(multi_head(12, 1), 3));
  const Tensor x = random_tensor(x_shape, 4);
  Tensor y = output(x_shape), weights = output(averaged_shape);
  layer({.x = x.view()}, {.out = y.mutable_view(), .weights = weights.mutable_view()}, {.masks = {Causal{}}});
  EXPECT_EQ(weights.at(0, 0, 0, 0), 1.0f);
  EXPECT_EQ(weights.at(1, 0, 3, 4), 0.0f);
}

TEST(returned_weights, other_dtypes_are_the_floats_rounded_once) {
  Returned r;
  for (const Shape& shape : {per_head_shape, averaged_shape}) {
    Tensor wide = output(shape), scores = output(per_head_shape);
    std::vector<bf16> narrow(wide.values.size()), narrow_scores(scores.values.size());
    r.layer({.x = r.x.view()},
            {.out = r.y.mutable_view(), .weights = wide.mutable_view(), .scores = {scores.mutable_view()}});
    r.layer(
        {.x = r.x.view()},
        {.out = r.y.mutable_view(), .weights = {narrow, shape}, .scores = {{narrow_scores, per_head_shape}}});
    std::int64_t misses = 0;
    for (std::size_t n = 0; n < narrow.size(); ++n)
      misses += narrow[n].bits != from_float<bf16>(wide.values[n]).bits ? 1 : 0;
    for (std::size_t n = 0; n < narrow_scores.size(); ++n)
      misses += narrow_scores[n].bits != from_float<bf16>(scores.values[n]).bits ? 1 : 0;
    EXPECT_EQ(misses, 0) << shape.heads << " heads";
  }
}

// A layer of one head with zero queries scores 0 everywhere: log-sum-exp is log(keys).
TEST(returned_weights, log_sum_exp_and_scores_pass_through) {
  LayerWeights w = random_weights(multi_head(12, 4), 5);
  w.w_q = Array::from_floats({12, 12}, std::vector<float>(144, 0.0f));
  const AttentionLayer layer(multi_head(12, 4), w);
  const Tensor x = random_tensor(x_shape, 6);
  Tensor y = output(x_shape), lse = output({2, 4, 5, 1}), scores = output(per_head_shape);
  layer({.x = x.view()}, {.out = y.mutable_view(),
                          .log_sum_exp = lse.mutable_view(),
                          .scores = {scores.mutable_view(), Stage::raw}});
  EXPECT_EQ(far_misses(lse.values, std::vector<double>(40, std::log(5.0)), 1e-6), 0);
  EXPECT_EQ(far_misses(scores.values, std::vector<double>(200, 0.0), 0), 0);
}

}  // namespace
}  // namespace heed::layer_tests
