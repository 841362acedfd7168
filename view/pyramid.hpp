// SPDX-License-Identifier: Apache-2.0
// One head at every scale: level n holds the largest and the mean of the seen weights of 2^n x 2^n cells.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace HEED_NAMESPACE::view {

struct Level {
  int log2_pool = 0;
  std::int64_t rows = 0, columns = 0;
  std::vector<std::uint8_t> largest{}, mean{};  // codes; the mean of level 0 is left out, being the largest
};

// Rows come in order, and each is seen once: a level passes its own rows on to the next, whose means are
// those of the weights and not of rounded means.
class Pyramid {
 public:
  // Keeps levels `finest`, finest + 1, ... up to the first of at most `coarsest_side` rows and columns.
  Pyramid(std::int64_t rows, std::int64_t columns, int finest);
  static constexpr std::int64_t coarsest_side = 32;

  void add_row(std::span<const float> weights, const bool* hidden);  // hidden: nullptr, or one for each
  const std::vector<Level>& levels() const { return levels_; }       // finest first; whole after the last row
  std::vector<Level> take_levels() { return std::move(levels_); }

 private:
  struct Cell {
    double sum;
    std::uint32_t seen;
    float largest;  // infinite where a weight is not finite
  };
  struct Strip {  // the rows of a level that are not yet whole
    std::vector<Cell> cells{};
    int rows = 0;
  };
  void pass_on(std::size_t level);

  std::int64_t rows_, added_ = 0;
  int finest_;
  std::vector<Strip> strips_{};  // of levels 0, 1, ...
  std::vector<Level> levels_{};
};

}  // namespace HEED_NAMESPACE::view
