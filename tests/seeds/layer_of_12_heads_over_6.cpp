// SPDX-License-Identifier: Apache-2.0
// Seed 004: grouped-query attention at the seed's own size (batch 2, length 1024, model 768, 12 query and 6
// KV heads), plain and with an additive mask. The fixtures hold a sample of rows and columns.
#include <limits>

#include "cases/seed_layer.hpp"

namespace heed::cases {
namespace {

constexpr std::int64_t batch = 2, length = 1024, model = 768, heads = 12, kv_heads = 6;

Tensor run_layer(const Options& options) {
  const AttentionLayer layer(grouped_query(model, heads, kv_heads),
                             {.w_q = weight_matrix({403, model, model, 0x1p-4f}),
                              .w_k = weight_matrix({404, model, 384, 0x1p-4f}),
                              .w_v = weight_matrix({405, model, 384, 0x1p-4f}),
                              .w_o = weight_matrix({406, model, model, 0x1p-4f})});
  const Tensor query = sequence(400, batch, length, model, 2), key = sequence(401, batch, length, model, 2),
               value = sequence(402, batch, length, model, 2);
  return run(layer, {query, key, value, 0, options}).out;
}

// The rows and columns that the fixtures hold.
Tensor sampled(const Tensor& full) {
  const Fixture rows = load_fixture("seed_004_rows"), columns = load_fixture("seed_004_columns");
  Tensor made({batch, 1, static_cast<std::int64_t>(rows.values.size()),
               static_cast<std::int64_t>(columns.values.size())});
  for_each(made.shape(), [&](auto b, auto h, auto i, auto d) {
    const auto row = static_cast<std::int64_t>(rows.values[static_cast<std::size_t>(i)]);
    const auto column = static_cast<std::int64_t>(columns.values[static_cast<std::size_t>(d)]);
    made.set(b, h, i, d, full.at(b, h, row, column));
  });
  return made;
}

TEST(Seed004, grouped_query_attention_at_the_seeds_size) {
  EXPECT_TRUE(matches_fixture("seed_004_plain", sampled(run_layer({}))));
}

TEST(Seed004, an_additive_mask_is_a_bias) {
  Tensor mask = Tensor::random({1, 1, length, length}, 407, 2);
  for (std::int64_t i = 0; i < length; ++i)
    for (std::int64_t j = i + 1; j < length; ++j)
      mask.set(0, 0, i, j, -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(matches_fixture("seed_004_additive_mask", sampled(run_layer({.bias = mask.view()}))));
}

}  // namespace
}  // namespace heed::cases
