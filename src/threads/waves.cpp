// SPDX-License-Identifier: Apache-2.0
#include "threads/waves.hpp"

#include <algorithm>

namespace heed::threads {

Waves::Waves(const std::vector<Grid>& grids) : grids_(grids) {
  std::size_t cells = 0;
  for (const Grid& grid : grids_) cells += grid.cells();
  cells_.reserve(cells);
  ready_.reserve(cells);  // so that nothing is allocated while tasks run
  for (std::size_t grid = 0; grid < grids_.size(); ++grid) lay_out(grid, grids_[grid]);
}

void Waves::lay_out(std::size_t grid, const Grid& of) {
  for (std::int64_t i = 0; i < of.rows; ++i)
    for (std::int64_t j = 0; j < of.columns; ++j) {
      cells_.push_back({grid, i + j, j + 1 < of.columns, i + 1 < of.rows, (i > 0) + (j > 0)});
      if (i + j == 0) make_ready(cells_.size() - 1);
    }
}

bool Waves::comes_later(std::size_t a, std::size_t b) const {
  return cells_[a].wave != cells_[b].wave ? cells_[a].wave > cells_[b].wave : a > b;
}

void Waves::make_ready(std::size_t cell) {
  ready_.push_back(cell);
  std::push_heap(ready_.begin(), ready_.end(), [this](auto a, auto b) { return comes_later(a, b); });
}

Waves::Cell Waves::take() {
  std::unique_lock lock(mutex_);
  more_.wait(lock, [this] { return !ready_.empty(); });
  std::pop_heap(ready_.begin(), ready_.end(), [this](auto a, auto b) { return comes_later(a, b); });
  const std::size_t cell = ready_.back();
  ready_.pop_back();
  return {cells_[cell].grid, cell};
}

void Waves::end(const Cell& cell) {
  const State& state = cells_[cell.index];
  const std::lock_guard lock(mutex_);
  const auto satisfy = [this](std::size_t next) {
    if (--cells_[next].missing > 0) return;
    make_ready(next);
    more_.notify_one();
  };
  if (state.has_right) satisfy(cell.index + 1);
  if (state.has_below) satisfy(cell.index + static_cast<std::size_t>(grids_[cell.grid].columns));
}

}  // namespace heed::threads
