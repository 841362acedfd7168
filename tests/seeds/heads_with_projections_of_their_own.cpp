// SPDX-License-Identifier: Apache-2.0
// Seed 000: multi-head cross-attention with one projection per head, and grouped-query attention.
#include "cases/seed_layer.hpp"

namespace heed::cases {
namespace {

// The seed keeps W_Q, W_K, W_V per head; heed stacks them: rows [h * d_k, (h + 1) * d_k) belong to head h.
Array stacked(std::uint64_t first_stream, std::int64_t heads, std::int64_t model, std::int64_t d_k) {
  std::vector<float> rows;
  for (std::int64_t h = 0; h < heads; ++h)
    append_transposed({first_stream + static_cast<std::uint64_t>(h), model, d_k}, d_k, rows);
  return array_of({heads * d_k, model}, rows);
}

TEST(Seed000, the_generator_draws_what_the_fixtures_were_made_from) {
  const Fixture expected = load_fixture("counter_random");
  const std::vector<std::uint64_t> streams{0, 1, 7, 400, std::uint64_t{1} << 63};
  ASSERT_EQ(expected.shape, (std::vector<std::int64_t>{5, 16}));
  for (std::size_t s = 0; s < streams.size(); ++s)
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(uniform(streams[s], i), expected.values[s * 16 + i]);
}

TEST(Seed000, multi_head_cross_attention_takes_separate_query_key_and_value_inputs) {
  const Tensor query = sequence(1, 2, 5, 24), key = sequence(2, 2, 7, 24), value = sequence(3, 2, 7, 24);
  const AttentionLayer layer(multi_head(24, 4), {.w_q = stacked(10, 4, 24, 6),
                                                 .w_k = stacked(20, 4, 24, 6),
                                                 .w_v = stacked(30, 4, 24, 6),
                                                 .w_o = weight_matrix({4, 24, 24, 0.5f})});
  EXPECT_TRUE(matches_fixture("seed_000_cross_mha", run(layer, {query, key, value}).out));
}

TEST(Seed000, grouped_query_head_i_reads_group_i_divided_by_heads_per_group) {
  const Tensor x = sequence(5, 2, 5, 24);
  const AttentionLayer layer(grouped_query(24, 6, 3), {.w_q = stacked(40, 6, 24, 4),
                                                       .w_k = stacked(50, 3, 24, 4),
                                                       .w_v = stacked(60, 3, 24, 4),
                                                       .w_o = weight_matrix({6, 24, 24, 0.5f})});
  EXPECT_TRUE(matches_fixture("seed_000_gqa", run(layer, {x, x, x}).out));
}

}  // namespace
}  // namespace heed::cases
