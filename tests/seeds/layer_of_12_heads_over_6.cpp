// SPDX-License-Identifier: Apache-2.0
// Seed 004: grouped-query attention at the seed's own size (batch 2, length 1024, model 768, 12 query and 6
// KV heads), plain and with an additive mask. The fixtures hold a sample of rows and columns; where an fma
// takes a call (small selection), only some rows are computed.
#include <limits>

#include "cases/seed_layer.hpp"
#include "cases/selection.hpp"

namespace heed::cases {
namespace {

constexpr std::int64_t batch = 2, length = 1024, model = 768, heads = 12, kv_heads = 6;

std::vector<std::int64_t> indices(const char* fixture) {
  std::vector<std::int64_t> found;
  for (const double x : load_fixture(fixture).values) found.push_back(static_cast<std::int64_t>(x));
  return found;
}

// The rows that are computed: all of them, or every eighth and those that the fixtures hold.
const std::vector<std::int64_t>& computed_rows() {
  static const std::vector<std::int64_t> computed = [] {
    std::vector<std::int64_t> rows = indices("seed_004_rows");
    for (std::int64_t row = 0; row < length; row += small_selection() ? 8 : 1) rows.push_back(row);
    return rows;
  }();
  return computed;
}

Tensor rows_of(const Tensor& all) {
  const std::vector<std::int64_t>& rows = computed_rows();
  Tensor some({all.shape().batch, 1, std::ssize(rows), all.shape().dim});
  for_each(some.shape(), [&](auto b, auto h, auto i, auto d) {
    some.set(b, h, i, d, all.at(b, h, rows[static_cast<std::size_t>(i)], d));
  });
  return some;
}

Tensor run_layer(const Options& options) {
  const AttentionLayer layer(grouped_query(model, heads, kv_heads),
                             {.w_q = weight_matrix({403, model, model, 0x1p-4f}),
                              .w_k = weight_matrix({404, model, 384, 0x1p-4f}),
                              .w_v = weight_matrix({405, model, 384, 0x1p-4f}),
                              .w_o = weight_matrix({406, model, model, 0x1p-4f})});
  const Tensor query = rows_of(sequence(400, batch, length, model, 2)),
               key = sequence(401, batch, length, model, 2), value = sequence(402, batch, length, model, 2);
  return run(layer, {query, key, value, 0, options}).out;
}

// The rows and columns that the fixtures hold.
Tensor sampled(const Tensor& computed) {
  const std::vector<std::int64_t> columns = indices("seed_004_columns");
  Tensor made({batch, 1, std::ssize(indices("seed_004_rows")), std::ssize(columns)});
  for_each(made.shape(), [&](auto b, auto h, auto i, auto d) {
    made.set(b, h, i, d, computed.at(b, h, i, columns[static_cast<std::size_t>(d)]));
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
  const Tensor rows = rows_of(mask);
  EXPECT_TRUE(matches_fixture("seed_004_additive_mask", sampled(run_layer({.bias = rows.view()}))));
}

}  // namespace
}  // namespace heed::cases
