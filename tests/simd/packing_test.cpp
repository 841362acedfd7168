// SPDX-License-Identifier: Apache-2.0
// Rows side by side in a tile, whatever the step from one element of a row to the next.
#include <cstdint>
#include <vector>

#include "cases/counter_random.hpp"
#include "simd/available.hpp"

namespace heed::simd {
namespace {

class Packing : public Simd {};
INSTANTIATE_TEST_SUITE_P(Vectors, Packing, testing::ValuesIn(compiled()), target_name);

// A panel of rows in one piece of memory, each with room for its widest step.
struct PackedPanel {
  static constexpr std::int64_t widest = 3;
  std::int64_t width, dim, depth = dim + dim % 2;
  std::vector<float> numbers{}, tile = std::vector<float>(static_cast<std::size_t>(width * depth), -7.0f);
  std::vector<std::int64_t> steps = std::vector<std::int64_t>(static_cast<std::size_t>(width), 1);

  PackedPanel(std::int64_t rows, std::int64_t dimensions) : width(rows), dim(dimensions) {
    for (std::int64_t n = 0; n < width * dim * widest; ++n)
      numbers.push_back(cases::uniform(1, static_cast<std::uint64_t>(n)));
  }
  const float* row(std::int64_t r) const { return numbers.data() + r * dim * widest; }

  // How many numbers of the tile are not those of the first `count` rows, or zeros where there is none.
  std::int64_t wrong_after_packing(const Operations& vector, std::int64_t count) {
    std::vector<const float*> begin;
    for (std::int64_t r = 0; r < count; ++r) begin.push_back(row(r));
    std::vector<float> buffer(static_cast<std::size_t>(4 * dim));
    vector.pack_rows({begin.data(), steps.data(), count, width, dim, depth, buffer.data(), tile.data()});
    std::int64_t wrong = 0;
    for (std::int64_t d = 0; d < depth; ++d)
      for (std::int64_t r = 0; r < width; ++r) {
        const auto at = static_cast<std::size_t>(r);
        const float wanted = r < count && d < dim ? row(r)[d * steps[at]] : 0.0f;
        wrong += same(tile[static_cast<std::size_t>(d * width) + at], wanted) ? 0 : 1;
      }
    return wrong;
  }
};

constexpr std::int64_t dims[] = {1, 15, 16, 33, 64}, widths[] = {8, 48};

TEST_P(Packing, rows_of_any_number_lie_side_by_side_and_zeros_beside_them) {
  std::int64_t wrong = 0;
  for (const std::int64_t dim : dims)
    for (const std::int64_t width : widths)
      for (std::int64_t count = 1; count <= width; ++count)
        wrong += PackedPanel(width, dim).wrong_after_packing(vector(), count);
  EXPECT_EQ(wrong, 0);
}

// The backward pass has zeros, of step 0, in place of rows that are not good.
TEST_P(Packing, a_row_is_read_by_its_own_step_whatever_its_neighbours_have) {
  for (const std::int64_t step : {0, 2, 3})
    for (const std::int64_t dim : dims)
      for (const std::int64_t width : widths)
        for (std::int64_t other = 0; other < width; ++other) {
          PackedPanel panel(width, dim);
          panel.steps[static_cast<std::size_t>(other)] = step;
          EXPECT_EQ(panel.wrong_after_packing(vector(), width), 0)
              << "row " << other << " of " << width << ", step " << step << ", " << dim << " dimensions";
        }
}

}  // namespace
}  // namespace heed::simd
