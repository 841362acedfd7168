// SPDX-License-Identifier: Apache-2.0
#include "threads/waves.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace heed::threads {
namespace {

// The cell that this thread took last, of whichever waves: no more than a hint.
constinit thread_local std::size_t last_cell = 0;

// Cells take some 0.2 ms; one that is put to sleep and woken, a good part of that.
constexpr auto looks_for = std::chrono::microseconds(200);

}  // namespace

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
      if (i + j == 0) ready_.push_back(cells_.size() - 1);
    }
}

bool Waves::comes_before(std::size_t a, std::size_t b) const {
  return cells_[a].wave != cells_[b].wave ? cells_[a].wave < cells_[b].wave : a < b;
}

void Waves::wait_for_ready(std::unique_lock<std::mutex>& lock) {
  const auto begun = std::chrono::steady_clock::now();
  while (ready_.empty() && std::chrono::steady_clock::now() - begun < looks_for) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  more_.wait(lock, [this] { return !ready_.empty(); });
}

std::vector<std::size_t>::iterator Waves::next_of_this_thread() {
  const auto first = std::ranges::min_element(ready_, [this](auto a, auto b) { return comes_before(a, b); }),
             right = std::ranges::find(ready_, last_cell + 1);
  if (right == ready_.end() || !cells_[last_cell].has_right) return first;
  return cells_[*right].wave <= cells_[*first].wave + 1 ? right : first;
}

Waves::Cell Waves::take() {
  std::unique_lock lock(mutex_);
  if (ready_.empty()) wait_for_ready(lock);
  const auto taken = next_of_this_thread();
  last_cell = *taken;
  *taken = ready_.back();
  ready_.pop_back();
  return {cells_[last_cell].grid, last_cell};
}

void Waves::end(const Cell& cell) {
  const State& state = cells_[cell.index];
  const std::lock_guard lock(mutex_);
  const auto satisfy = [this](std::size_t next) {
    if (--cells_[next].missing > 0) return;
    ready_.push_back(next);
    more_.notify_one();
  };
  if (state.has_right) satisfy(cell.index + 1);
  if (state.has_below) satisfy(cell.index + static_cast<std::size_t>(grids_[cell.grid].columns));
}

}  // namespace heed::threads
