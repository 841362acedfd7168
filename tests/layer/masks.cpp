// SPDX-License-Identifier: Apache-2.0
// The mask builders against what their words mean, element by element, and inside a layer.
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

const std::vector<std::int64_t> tokens{5, 3, 9, 0, 0,   //
                                       7, 0, 0, 0, 0,   //
                                       1, 2, 3, 4, 5,   //
                                       0, 0, 0, 0, 0};  // (4, 5), padded with 0

TEST(mask_builders, padding_is_hidden_and_nothing_else) {
  for (const std::int64_t pad_id : {0, 3, -1}) {
    const HideMatrix mask = padding_mask(tokens, 4, pad_id);
    ASSERT_EQ(mask.shape, (Shape{4, 1, 1, 5}));
    std::int64_t misses = 0;
    for (std::int64_t b = 0; b < 4; ++b)
      for (std::int64_t j = 0; j < 5; ++j)
        misses += mask.at(b, 0, 0, j) != (tokens[static_cast<std::size_t>(b * 5 + j)] == pad_id) ? 1 : 0;
    EXPECT_EQ(misses, 0) << "pad_id " << pad_id;
  }
}

TEST(mask_builders, look_ahead_hides_strictly_above_the_diagonal) {
  for (const std::int64_t size : {0, 1, 2, 7}) {
    const HideMatrix mask = look_ahead_mask(size);
    ASSERT_EQ(mask.shape, (Shape{1, 1, size, size}));
    std::int64_t misses = 0;
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t j = 0; j < size; ++j) misses += mask.at(0, 0, i, j) != (j > i) ? 1 : 0;
    EXPECT_EQ(misses, 0) << "size " << size;
  }
}

TEST(mask_builders, combined_masks_hide_what_either_hides) {
  const HideMatrix padding = padding_mask(tokens, 4), future = look_ahead_mask(5);
  for (const bool is_swapped : {false, true}) {
    const HideMatrix both = is_swapped ? combine(future, padding) : combine(padding, future);
    ASSERT_EQ(both.shape, (Shape{4, 1, 5, 5}));
    std::int64_t misses = 0;
    for (std::int64_t b = 0; b < 4; ++b)
      for (std::int64_t i = 0; i < 5; ++i)
        for (std::int64_t j = 0; j < 5; ++j)
          misses +=
              both.at(b, 0, i, j) != (j > i || tokens[static_cast<std::size_t>(b * 5 + j)] == 0) ? 1 : 0;
    EXPECT_EQ(misses, 0);
  }
}

TEST(mask_builders, combining_broadcasts_every_axis) {
  HideMatrix a{{2, 1, 3, 1}, std::make_unique<bool[]>(6)}, b{{1, 2, 1, 4}, std::make_unique<bool[]>(8)};
  for (std::size_t n = 0; n < 6; ++n) a.hidden[n] = n % 3 == 1;
  for (std::size_t n = 0; n < 8; ++n) b.hidden[n] = n % 5 == 2;
  const HideMatrix both = combine(a, b);
  ASSERT_EQ(both.shape, (Shape{2, 2, 3, 4}));
  std::int64_t misses = 0;
  for (std::int64_t n = 0; n < 2; ++n)
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t j = 0; j < 4; ++j)
          misses += both.at(n, h, i, j) != (a.at(n, 0, i, 0) || b.at(0, h, 0, j)) ? 1 : 0;
  EXPECT_EQ(misses, 0);
}

TEST(mask_builders, lengths_count_the_tokens_before_the_padding) {
  EXPECT_EQ(key_lengths(tokens, 4), (std::vector<std::int32_t>{3, 1, 5, 0}));
  EXPECT_EQ(key_lengths({}, 3), (std::vector<std::int32_t>{0, 0, 0}));
  EXPECT_TRUE(key_lengths({}, 0).empty());
}

TEST(mask_builders, lengths_and_padding_mask_mean_the_same_to_a_layer) {
  const AttentionLayer layer(multi_head(8, 2), random_weights(multi_head(8, 2), 3));
  const Tensor x = random_tensor({4, 1, 5, 8}, 4);
  const HideMatrix padding = padding_mask(tokens, 4), future = look_ahead_mask(5),
                   both = combine(padding, future);
  const std::vector<std::int32_t> lengths = key_lengths(tokens, 4);
  const Tensor by_matrix = run(layer, {.x = x.view()}, {.masks = {Hide(both)}});
  const Tensor by_rule = run(layer, {.x = x.view()}, {.masks = {KeyLengths{lengths}, Causal{}}});
  EXPECT_EQ(bit_misses(by_matrix.values, by_rule.values), 0);
  EXPECT_NE(bit_misses(by_matrix.values, run(layer, {.x = x.view()}).values), 0);
}

TEST(mask_builders, bad_input_is_refused_in_a_sentence) {
  expect_refusal(Error::shape, "tokens: 20 of them do not make 3 rows of one length",
                 [] { padding_mask(tokens, 3); });
  expect_refusal(Error::shape, "tokens: 20 of them do not make 0 rows of one length",
                 [] { key_lengths(tokens, 0); });
  expect_refusal(Error::shape, "batch: -1 is negative", [] { padding_mask(tokens, -1); });
  expect_refusal(Error::shape, "size: -1 is not in [0, 2147483647]", [] { look_ahead_mask(-1); });
  expect_refusal(Error::value,
                 "tokens: row 1 has padding at 0 before a token at 2, so no length describes it",
                 [] { key_lengths(std::vector<std::int64_t>{1, 2, 3, 0, 0, 4}, 2); });
  expect_refusal(Error::shape, "b.keys: 4 is neither a.keys: 5 nor 1",
                 [] { combine(padding_mask(tokens, 4), look_ahead_mask(4)); });
  expect_refusal(Error::value, "a.hidden: holds no memory", [] {
    HideMatrix mask = look_ahead_mask(3);
    const HideMatrix kept = std::move(mask);
    combine(mask, kept);
  });
}

}  // namespace
}  // namespace heed::layer_tests
