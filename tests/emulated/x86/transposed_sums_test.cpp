// SPDX-License-Identifier: Apache-2.0
// The rows of a panel in bf16, rounded by AMX's vectors and transposed after that.
#define HEED_THIS_TARGET transposed_sums_test
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "cases/counter_random.hpp"
#include "cpu/isa/amx.hpp"
#include "cpu/tile/finish.hpp"
#include "heed/dtype.hpp"

namespace heed::cpu::transposed_sums_test {
namespace {

constexpr std::int64_t rows = Tile<Amx>::rows, max_dims = 96;
constexpr std::uint16_t untouched = 0x1234;

// Sums whose products with 1/2 lie half-way between two numbers of bf16, among the smallest there are, at 0
// with either sign, and anywhere.
struct Panel {
  std::vector<float> sums = std::vector<float>(static_cast<std::size_t>(max_dims * rows));
  std::vector<std::uint16_t> out =
      std::vector<std::uint16_t>(static_cast<std::size_t>(rows * max_dims), untouched);

  Panel() {
    for (std::size_t n = 0; n < sums.size(); ++n) {
      const float x = cases::uniform(3, n);
      const auto bits = __builtin_bit_cast(std::uint32_t, x);
      const float half_way = __builtin_bit_cast(float, (bits & 0xffff0000u) | 0x8000u);
      const float all[] = {x,           half_way, x * 0x1p-126f, half_way * 0x1p-127f, x < 0 ? -0.0f : 0.0f,
                           x * 0x1p100f};
      sums[n] = all[n % 6];
    }
  }

  bool write(int count, std::int64_t value_dim) {
    const std::int64_t dims = round_up(value_dim, 16);
    RoundedRows<Amx> to(dims, value_dim);
    for (int r = 0; r < count; ++r) to.add(out.data() + r * max_dims, factor(r));
    return to.write(sums.data());
  }
  static float factor(int r) { return r % 3 == 0 ? 0.5f : 1.0f / static_cast<float>(r + 1); }

  std::int64_t wrong(int count, std::int64_t value_dim) const {
    std::int64_t differ = 0;
    for (int r = 0; r < static_cast<int>(rows); ++r)
      for (std::int64_t d = 0; d < max_dims; ++d) {
        const float x = sums[static_cast<std::size_t>(d * rows + r)] * factor(r) + 0.0f;
        const std::uint16_t wanted = r < count && d < value_dim ? from_float<bf16>(x).bits : untouched;
        differ += out[static_cast<std::size_t>(r * max_dims + d)] != wanted ? 1 : 0;
      }
    return differ;
  }
};

TEST(TransposedSums, rows_are_rounded_as_every_number_by_itself_and_nothing_beside_them_is_written) {
  for (const std::int64_t value_dim : {1, 16, 31, 32, 64, 80})
    for (int count = 1; count <= static_cast<int>(rows); ++count) {
      Panel panel;
      EXPECT_TRUE(panel.write(count, value_dim));
      EXPECT_EQ(panel.wrong(count, value_dim), 0) << count << " rows of " << value_dim;
    }
}

TEST(TransposedSums, a_row_that_is_no_number_is_told_and_one_beyond_the_last_is_not_looked_at) {
  constexpr int count = 20, last_dim = 63;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const int r : {0, 19, 20, 31}) {
      Panel panel;
      panel.sums[static_cast<std::size_t>(last_dim * rows + r)] = bad;
      EXPECT_EQ(panel.write(count, last_dim + 1), r >= count) << bad << " in row " << r;
    }
}

}  // namespace
}  // namespace heed::cpu::transposed_sums_test
