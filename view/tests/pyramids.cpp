// SPDX-License-Identifier: Apache-2.0
// Levels and numbers of a head, on weights small enough to count by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "view/code.hpp"
#include "view/largest.hpp"
#include "view/pyramid.hpp"
#include "view/statistics.hpp"

namespace HEED_NAMESPACE::view {
namespace {

TEST(Codes, keep_the_order_of_weights_and_come_back_within_three_percent) {
  std::uint8_t before = zero_code;
  for (float weight = 1e-6F; weight <= 1; weight *= 1.01F) {
    const std::uint8_t code = code_of(weight);
    EXPECT_GE(code, before);
    EXPECT_NEAR(weight_of(code), weight, 0.03F * weight);
    before = code;
  }
  EXPECT_EQ(code_of(0), zero_code);
  EXPECT_EQ(code_of(1), one_code);
  EXPECT_EQ(code_of(7), one_code);
  EXPECT_EQ(code_of(1e-30F), min_code);
  EXPECT_EQ(code_of(std::nanf("")), not_finite_code);
  EXPECT_EQ(code_of(INFINITY), not_finite_code);
  EXPECT_TRUE(std::isnan(weight_of(hidden_code)));
}

TEST(Pyramid, a_cell_holds_the_largest_and_the_mean_of_what_is_seen) {
  // 40 x 40, so that levels of 40 and 20 cells are kept.
  Pyramid pyramid(40, 40, 0);
  for (int i = 0; i < 40; ++i) {
    std::vector<float> row(40);
    const auto hidden = std::make_unique<bool[]>(40);
    for (int j = 0; j < 40; ++j) {
      row[static_cast<std::size_t>(j)] = static_cast<float>(1 + i % 2 * 2 + j % 2) / 8;
      hidden[static_cast<std::size_t>(j)] = j > i;
    }
    pyramid.add_row(row, hidden.get());
  }
  const auto& levels = pyramid.levels();
  ASSERT_EQ(levels.size(), 2U);
  EXPECT_EQ(levels[0].largest[0], code_of(1.0F / 8));
  EXPECT_EQ(levels[0].largest[1], hidden_code);
  EXPECT_TRUE(levels[0].mean.empty());
  const Level& pooled = levels[1];
  EXPECT_EQ(pooled.rows, 20);
  EXPECT_EQ(pooled.columns, 20);
  EXPECT_EQ(pooled.largest[0], code_of(4.0F / 8));
  EXPECT_EQ(pooled.mean[0], code_of((1 + 3 + 4) / 8.0F / 3)) << "the hidden one of four does not count";
  EXPECT_EQ(pooled.mean[20], code_of((1 + 2 + 3 + 4) / 8.0F / 4));
  EXPECT_EQ(pooled.largest[1], hidden_code);
}

TEST(Pyramid, extents_that_are_no_powers_of_two_keep_their_last_rows_and_columns) {
  Pyramid pyramid(67, 3, 0);
  for (int i = 0; i < 67; ++i) pyramid.add_row(std::vector<float>{0, 0, i == 66 ? 1.0F : 0.0F}, nullptr);
  for (const Level& level : pyramid.levels()) {
    ASSERT_EQ(level.largest.size(), static_cast<std::size_t>(level.rows * level.columns));
    EXPECT_EQ(level.largest.back(), one_code);
  }
  EXPECT_EQ(pyramid.levels().back().rows, 17);
}

TEST(Pyramid, one_weight_that_is_not_finite_shows_at_every_level) {
  Pyramid pyramid(64, 64, 0);
  for (int i = 0; i < 64; ++i) {
    std::vector<float> row(64, 0.25F);
    if (i == 9) row[13] = std::nanf("");
    pyramid.add_row(row, nullptr);
  }
  for (const Level& level : pyramid.levels()) {
    EXPECT_EQ(std::count(level.largest.begin(), level.largest.end(), std::uint8_t{not_finite_code}), 1);
    for (const std::uint8_t code : level.mean) EXPECT_EQ(code, code_of(0.25F));
  }
}

TEST(Statistics, are_those_of_the_weights) {
  StatisticsRecord record(3, 0);
  const bool hidden[3][3] = {{false, true, true}, {false, false, true}, {false, false, false}};
  record.add_row(std::vector<float>{1, 0, 0}, hidden[0]);
  record.add_row(std::vector<float>{0.5F, 0.5F, 0}, hidden[1]);
  record.add_row(std::vector<float>{0.25F, 0.25F, 0.5F}, hidden[2]);
  const Statistics found = record.statistics();
  EXPECT_DOUBLE_EQ(found.entropy_bits, (0 + 1 + 1.5) / 3);
  EXPECT_DOUBLE_EQ(found.first, (1 + 0.5 + 0.25) / 3);
  EXPECT_DOUBLE_EQ(found.back[0], (1 + 0.5 + 0.5) / 3);
  EXPECT_DOUBLE_EQ(found.back[1], (0 + 0.5 + 0.25) / 3);
  EXPECT_DOUBLE_EQ(found.back[2], 0.25 / 3);
  EXPECT_DOUBLE_EQ(found.distance, (0 + 0.5 + 0.75) / 3);
  EXPECT_DOUBLE_EQ(found.received[1], (0.5 + 0.25) / 2);
  EXPECT_EQ(found.seen, 6);
  EXPECT_FLOAT_EQ(found.largest, 1);
}

TEST(LargestWeights, are_the_largest_in_order_with_earlier_keys_first_among_equals) {
  LargestWeights kept{.count = 3};
  kept.add_row(std::vector<float>{0.1F, 0.3F, 0.1F, 0.5F, 0.1F}, nullptr);
  EXPECT_EQ(kept.keys, (std::vector<std::uint32_t>{3, 1, 0}));
  const bool hidden[5] = {false, true, false, true, true};
  kept.add_row(std::vector<float>{0, 9, 0.2F, 9, 9}, hidden);
  EXPECT_EQ(kept.keys[3], 2U);
  EXPECT_EQ(kept.keys[4], LargestWeights::no_key);
}

}  // namespace
}  // namespace HEED_NAMESPACE::view
