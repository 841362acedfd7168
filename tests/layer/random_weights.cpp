// SPDX-License-Identifier: Apache-2.0
// Weights drawn from a seed.
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

TEST(random_weights, a_seed_means_the_same_weights_everywhere) {
  // Word 0x6627e8d5 is the first for seed 0: (2 * 0x6627e8 + 1) / 2^24 - 1 of 1/sqrt(4).
  const LayerWeights w = random_weights(multi_head(4, 2), 0);
  EXPECT_EQ(w.w_q.to_floats()[0], static_cast<float>(2 * 0x6627e8 + 1 - (1 << 24)) * 0x1p-24f * 0.5f);
  EXPECT_TRUE(same_weights(w, random_weights(multi_head(4, 2), 0)));
  EXPECT_FALSE(same_weights(w, random_weights(multi_head(4, 2), 1)));
  EXPECT_FALSE(same_weights(w, random_weights(multi_head(4, 2), std::uint64_t{1} << 32)));
  EXPECT_FALSE(same_array(w.w_q, w.w_k));
  EXPECT_FALSE(w.b_q || w.b_k || w.b_v || w.b_o);
}

TEST(random_weights, they_fill_plus_minus_one_over_root_fan_in_evenly) {
  const LayerConfig c{.model_dim = 64, .heads = 4, .key_dim = 16};
  const LayerWeights w = random_weights(c, 7);
  for (const Array* matrix : {&w.w_q, &w.w_k, &w.w_v, &w.w_o}) {
    const float largest = 1 / std::sqrt(static_cast<float>(matrix->shape[1]));
    std::array<std::int64_t, 4> quarters{};
    std::int64_t outside = 0;
    for (const float value : matrix->to_floats()) {
      const float share = (value / largest + 1) * 2;  // in (0, 4)
      if (!(share > 0 && share < 4))
        ++outside;
      else
        ++quarters[static_cast<std::size_t>(share)];
    }
    EXPECT_EQ(outside, 0);
    for (const std::int64_t count : quarters)  // 6 standard deviations
      EXPECT_NEAR(static_cast<double>(count), static_cast<double>(matrix->elements()) / 4,
                  6 * std::sqrt(static_cast<double>(matrix->elements()) * 3 / 16));
  }
}

}  // namespace
}  // namespace heed::layer_tests
