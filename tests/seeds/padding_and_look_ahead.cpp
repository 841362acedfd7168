// SPDX-License-Identifier: Apache-2.0
// Seed 001: scaled dot-product attention, multi-head attention, padding and look-ahead masks, MQA and GQA.
#include "cases/kernels.hpp"
#include "cases/seed_layer.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

constexpr std::int64_t model = 64, heads = 8, d_k = 8;
const std::vector<std::int64_t> example_seq{10, 25, 5, 0, 0, 7, 32, 18, 21, 9};

AttentionLayer layer_with(std::int64_t kv_heads) {
  return {grouped_query(model, heads, kv_heads),
          {.w_q = weight_matrix({113, model, model, 0.5f}),
           .w_k = weight_matrix({114, model, model, 0.5f}, kv_heads * d_k),
           .w_v = weight_matrix({115, model, model, 0.5f}, kv_heads * d_k),
           .w_o = weight_matrix({116, model, model, 0.5f})}};
}

LayerResult cross(std::int64_t kv_heads) {
  const Tensor q = sequence(110, 2, 5, model), k = sequence(111, 2, 4, model), v = sequence(112, 2, 4, model);
  return run(layer_with(kv_heads), {q, k, v, heads});
}

LayerResult masked(const std::vector<Mask>& masks) {
  const Tensor x = sequence(120, 2, 5, model);
  return run(layer_with(heads), {x, x, x, heads, {.masks = masks}});
}

testing::AssertionResult equals_fixture(const HideMatrix& mask, const std::string& name) {
  const Fixture expected = load_fixture(name);
  const Shape& s = mask.shape;
  if (expected.shape != std::vector<std::int64_t>{s.batch, s.heads, s.length, s.dim})
    return testing::AssertionFailure() << name << ": another shape";
  std::size_t n = 0, wrong = 0;
  for_each(s, [&](auto b, auto h, auto i, auto j) {
    wrong += mask.at(b, h, i, j) != (expected.values[n++] != 0);
  });
  if (wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name << ": " << wrong << " entries differ";
}

TEST(Seed001, scaled_dot_product_attention_and_its_weights) {
  const Call call{.q = Tensor::random({1, 1, 3, 8}, 100, 2),
                  .k = Tensor::random({1, 1, 4, 8}, 101, 2),
                  .v = Tensor::random({1, 1, 4, 16}, 102, 2)};
  int took_it = 0;
  for (const std::string& kernel : kernel_names()) {
    SCOPED_TRACE(kernel);
    std::optional<Results> results = run_if_accepted(call, {.weights = true}, kernel);
    if (!results) continue;  // decode kernels return no weights
    ++took_it;
    EXPECT_TRUE(matches_fixture("seed_001_sdpa", results->out));
    EXPECT_TRUE(matches_fixture("seed_001_sdpa_weights", *results->weights));
    EXPECT_EQ(check(call.inputs(), results->outputs(), call.options()).beyond_bound, 0);
  }
  EXPECT_GE(took_it, 3);  // prefill on this machine's best target and on scalar, and the reference
}

TEST(Seed001, multi_head_attention_and_its_weights) {
  const LayerResult result = cross(heads);
  EXPECT_TRUE(matches_fixture("seed_001_mha", result.out));
  EXPECT_TRUE(matches_fixture("seed_001_mha_weights", result.weights));
}

TEST(Seed001, multi_query_attention_shares_one_key_and_value_head) {
  EXPECT_TRUE(matches_fixture("seed_001_mqa", cross(1).out));
}

TEST(Seed001, grouped_query_attention_repeats_each_key_and_value_head) {
  EXPECT_TRUE(matches_fixture("seed_001_gqa", cross(4).out));
}

TEST(Seed001, the_mask_builders_make_the_seeds_matrices) {
  const HideMatrix padding = padding_mask(example_seq, 2), look_ahead = look_ahead_mask(5);
  EXPECT_TRUE(equals_fixture(padding, "seed_001_mask_padding"));
  EXPECT_TRUE(equals_fixture(look_ahead, "seed_001_mask_look_ahead"));
  EXPECT_TRUE(equals_fixture(combine(padding, look_ahead), "seed_001_mask_combined"));
  EXPECT_EQ(key_lengths(example_seq, 2), (std::vector<std::int32_t>{3, 5}));
}

TEST(Seed001, a_padding_mask_hides_padding) {
  const HideMatrix padding = padding_mask(example_seq, 2);
  const LayerResult result = masked({Hide(padding)});
  EXPECT_TRUE(matches_fixture("seed_001_padding", result.out));
  EXPECT_TRUE(matches_fixture("seed_001_padding_weights", result.weights));
}

TEST(Seed001, a_look_ahead_mask_hides_the_future) {
  const HideMatrix look_ahead = look_ahead_mask(5);
  const LayerResult result = masked({Hide(look_ahead)});
  EXPECT_TRUE(matches_fixture("seed_001_look_ahead", result.out));
  EXPECT_TRUE(matches_fixture("seed_001_look_ahead_weights", result.weights));
}

TEST(Seed001, both_masks_hide_what_either_hides_however_they_are_combined) {
  const HideMatrix padding = padding_mask(example_seq, 2), look_ahead = look_ahead_mask(5);
  const HideMatrix both = combine(padding, look_ahead);
  const std::vector<std::int32_t> lengths = key_lengths(example_seq, 2);
  const LayerResult one_matrix = masked({Hide(both)});
  EXPECT_TRUE(matches_fixture("seed_001_combined", one_matrix.out));
  EXPECT_TRUE(matches_fixture("seed_001_combined_weights", one_matrix.weights));
  for (const std::vector<Mask>& masks : {std::vector<Mask>{Hide(padding), Hide(look_ahead)},
                                         std::vector<Mask>{KeyLengths{lengths}, Causal{}}}) {
    const LayerResult other = masked(masks);
    EXPECT_TRUE(same_bits(other.out, one_matrix.out));
    EXPECT_TRUE(same_bits(other.weights, one_matrix.weights));
  }
}

}  // namespace
}  // namespace heed::cases
