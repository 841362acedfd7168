// SPDX-License-Identifier: Apache-2.0
#include "threads/waves.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <numeric>
#include <thread>

#include "threads/pool.hpp"
#include "threads/tsan.hpp"

namespace heed::threads {
namespace {

constexpr std::size_t none = ~std::size_t{0}, word_bits = 64;

// Paths are told apart by this part of the longest cell. A thread stays in its row as long as no path is
// longer by more than two cells: with one, 12 heads of 1024 x 64 took 6.0 ms instead of 5.9 on 16 threads of
// a Xeon, and 6.0 to 6.2 in their columns (November 2026).
constexpr float units_per_cell = 8, worth_staying = 16;

// The cell that this thread took last, of whichever waves: no more than a hint.
constinit thread_local std::size_t last_cell = 0;

// Cells take some 0.3 ms, and one that is put to sleep and woken a good part of that: having looked for 0.2
// ms only, the same threads were out of tasks for 7.7 % of their time instead of 6.4.
constexpr auto looks_for = std::chrono::milliseconds(1);

std::size_t cells_of(const std::vector<Grid>& grids) {
  std::size_t cells = 0;
  for (const Grid& grid : grids) cells += grid.cells();
  return cells;
}

std::uint64_t bit_of(std::size_t place) { return std::uint64_t{1} << place % word_bits; }

}  // namespace

Waves::Waves(const std::vector<Grid>& grids, const std::vector<float>& times)
    : grids_(grids),
      unit_(std::max(1e-30f, *std::ranges::max_element(times)) / units_per_cell),
      cells_(cells_of(grids)),
      order_(cells_.size()),
      ready_(cells_.size() / word_bits + 1) {
  std::vector<std::size_t> first_cells;
  for (std::size_t grid = 0, first = 0; grid < grids_.size(); first += grids_[grid++].cells()) {
    lay_out(grid, first, times);
    first_cells.push_back(first);
  }
  put_in_order();
  for (const std::size_t cell : first_cells) make_ready(cell);
}

void Waves::lay_out(std::size_t grid, std::size_t first_cell, const std::vector<float>& times) {
  const Grid& of = grids_[grid];
  std::size_t cell = first_cell + of.cells();
  for (std::int64_t i = of.rows; i-- > 0;)
    for (std::int64_t j = of.columns; j-- > 0;) {
      State& state = cells_[--cell];
      state.grid = grid;
      state.has_right = j + 1 < of.columns, state.has_below = i + 1 < of.rows;
      state.missing = (i > 0) + (j > 0);  // fault: gradient-of-parts-out-of-turn
      const float right = state.has_right ? cells_[cell + 1].path : 0,
                  below = state.has_below ? cells_[cell + static_cast<std::size_t>(of.columns)].path : 0;
      state.path = times[cell] + std::max(right, below);
    }
}

// By counting: comparing 3784 cells would take half a millisecond.
void Waves::put_in_order() {
  const auto units = [this](const State& state) { return static_cast<std::size_t>(state.path / unit_); };
  std::size_t most = 0;
  for (const State& state : cells_) most = std::max(most, units(state));
  std::vector<std::size_t> next(most + 2);  // the next place of those with so many units less than the most
  for (const State& state : cells_) ++next[most - units(state) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (std::size_t cell = 0; cell < cells_.size(); ++cell) {
    cells_[cell].place = next[most - units(cells_[cell])]++;
    order_[cells_[cell].place] = cell;
  }
}

std::size_t Waves::first_ready() const {
  for (std::size_t word = 0; word < ready_.size(); ++word)
    if (const std::uint64_t bits = ready_[word])
      return order_[word * word_bits + static_cast<std::size_t>(std::countr_zero(bits))];
  return none;
}

bool Waves::is_ready(std::size_t cell) const {
  const std::size_t place = cells_[cell].place;
  return (ready_[place / word_bits] & bit_of(place)) != 0;
}

// False where another thread was quicker.
bool Waves::claim(std::size_t cell) {
  const std::size_t place = cells_[cell].place;
  return (ready_[place / word_bits].fetch_and(~bit_of(place)) & bit_of(place)) != 0;
}

std::size_t Waves::next_of_this_thread() const {
  const std::size_t first = first_ready(), right = last_cell + 1;
  if (first == none || right >= cells_.size() || !cells_[last_cell].has_right || !is_ready(right))
    return first;
  return cells_[right].path + worth_staying * unit_ >= cells_[first].path ? right : first;
}

void Waves::wait_for_ready() {
  const auto is_there = [this] { return first_ready() != none; };
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begun < looks_for) {
    for (int n = 0; n < 32; ++n) {
      if (is_there()) return;
      relax();
    }
    std::this_thread::yield();
  }
  std::unique_lock lock(mutex_);
  ++sleepers_;  // and then looks again, as make_ready() first does its part and then looks for sleepers
  more_.wait(lock, is_there);
  --sleepers_;
}

Waves::Cell Waves::take() {
  for (;;) {
    const std::size_t cell = next_of_this_thread();
    if (cell == none) {
      wait_for_ready();
    } else if (claim(cell)) {
      tell_tsan_after(&cells_[cell]);
      return {cells_[last_cell = cell].grid, cell};
    }
  }
}

void Waves::make_ready(std::size_t cell) {
  const std::size_t place = cells_[cell].place;
  ready_[place / word_bits] |= bit_of(place);
  if (sleepers_ == 0) return;
  const std::lock_guard lock(mutex_);  // one that is about to sleep does so first
  more_.notify_one();
}

void Waves::lose_predecessor(std::size_t cell) {
  tell_tsan_before(&cells_[cell]);
  if (--cells_[cell].missing == 0) make_ready(cell);
}

void Waves::end(const Cell& cell) {
  const State& state = cells_[cell.index];
  if (state.has_right) lose_predecessor(cell.index + 1);
  if (state.has_below) lose_predecessor(cell.index + static_cast<std::size_t>(grids_[cell.grid].columns));
}

}  // namespace heed::threads
