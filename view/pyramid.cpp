// SPDX-License-Identifier: Apache-2.0
// See pyramid.hpp.
#include "view/pyramid.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "view/code.hpp"

namespace HEED_NAMESPACE::view {
namespace {

constexpr float nothing_seen = -1;

std::int64_t pooled(std::int64_t extent, int log2_pool) {
  return (extent + (std::int64_t{1} << log2_pool) - 1) >> log2_pool;
}

}  // namespace

Pyramid::Pyramid(std::int64_t rows, std::int64_t columns, int finest) : rows_(rows), finest_(finest) {
  for (int n = 0;; ++n) {
    const std::int64_t level_rows = pooled(rows, n), level_columns = pooled(columns, n);
    strips_.push_back(
        {.cells = std::vector<Cell>(static_cast<std::size_t>(level_columns), {0, 0, nothing_seen})});
    if (n >= finest) {
      Level level{.log2_pool = n, .rows = level_rows, .columns = level_columns};
      level.largest.reserve(static_cast<std::size_t>(level_rows * level_columns));
      if (n > 0) level.mean.reserve(static_cast<std::size_t>(level_rows * level_columns));
      levels_.push_back(std::move(level));
    }
    if (n >= finest && std::max(level_rows, level_columns) <= coarsest_side) break;
  }
}

void Pyramid::add_row(std::span<const float> weights, const bool* hidden) {
  Strip& strip = strips_.front();
  for (std::size_t j = 0; j < weights.size(); ++j) {
    const float w = weights[j];
    if (hidden && hidden[j])
      strip.cells[j] = {0, 0, nothing_seen};
    else if (std::isfinite(w))
      strip.cells[j] = {w, 1, w};
    else
      strip.cells[j] = {0, 0, std::numeric_limits<float>::infinity()};
  }
  strip.rows = 1;
  ++added_;
  pass_on(0);
}

// Writes the whole rows of a level down and adds them to the level above, which may make one whole there.
void Pyramid::pass_on(std::size_t n) {
  Strip& strip = strips_[n];
  const bool is_last = added_ == rows_;
  if (static_cast<int>(n) >= finest_) {
    Level& level = levels_[n - static_cast<std::size_t>(finest_)];
    for (const Cell& cell : strip.cells) {
      const bool is_hidden = cell.largest == nothing_seen;
      level.largest.push_back(is_hidden ? std::uint8_t{hidden_code} : code_of(cell.largest));
      if (n == 0) continue;
      const float mean = cell.seen > 0 ? static_cast<float>(cell.sum / cell.seen) : cell.largest;
      level.mean.push_back(is_hidden ? std::uint8_t{hidden_code} : code_of(mean));
    }
  }
  if (n + 1 < strips_.size()) {
    Strip& next = strips_[n + 1];
    for (std::size_t j = 0; j < strip.cells.size(); ++j) {
      const Cell& cell = strip.cells[j];
      Cell& into = next.cells[j / 2];
      into.sum += cell.sum;
      into.seen += cell.seen;
      into.largest = std::max(into.largest, cell.largest);
    }
    if (++next.rows == 2 || is_last) pass_on(n + 1);
  }
  std::fill(strip.cells.begin(), strip.cells.end(), Cell{0, 0, nothing_seen});
  strip.rows = 0;
}

}  // namespace HEED_NAMESPACE::view
