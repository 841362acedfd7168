// SPDX-License-Identifier: Apache-2.0
// Cells of grids: each once, none before those that it needs.
#include "threads/waves.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace heed::threads {
namespace {

const std::vector<Grid> grids{{4, 6}, {1, 1}, {7, 1}, {1, 5}, {3, 3}};

std::size_t cells_of(const std::vector<Grid>& all) {
  std::size_t cells = 0;
  for (const Grid& grid : all) cells += grid.cells();
  return cells;
}

std::vector<float> alike(const std::vector<Grid>& all) { return std::vector<float>(cells_of(all), 3.0f); }

// Which cells have ended, by their place among all; no atomics, since waves order what they order.
class Ended {
 public:
  // Whether those before it in its row and in its column have; marks it.
  bool end(const Waves::Cell& cell) {
    std::size_t first = 0;
    for (std::size_t n = 0; n < cell.grid; ++n) first += grids[n].cells();
    const auto columns = static_cast<std::size_t>(grids[cell.grid].columns), own = cell.index - first;
    const bool is_free =
        (own % columns == 0 || ended_[cell.index - 1]) && (own < columns || ended_[cell.index - columns]);
    return !std::exchange(ended_[cell.index], 1) && is_free;
  }

 private:
  std::vector<char> ended_ = std::vector<char>(cells_of(grids));
};

TEST(Waves, one_thread_never_waits) {
  Waves waves(grids, alike(grids));
  Ended ended;
  for (std::size_t n = 0; n < cells_of(grids); ++n) {
    const Waves::Cell cell = waves.take();
    EXPECT_TRUE(ended.end(cell)) << cell.index;
    waves.end(cell);
  }
}

TEST(Waves, the_grid_with_the_longest_way_to_its_end_comes_first) {
  Waves waves(grids, alike(grids));
  for (const std::size_t grid : {0u, 2u, 3u, 4u, 1u}) EXPECT_EQ(waves.take().grid, grid);
}

TEST(Waves, a_way_is_as_long_as_its_cells_take) {
  Waves waves({{1, 3}, {2, 1}}, {1, 1, 1, 1, 5});
  EXPECT_EQ(waves.take().grid, 1u);
}

TEST(Waves, cells_may_take_no_time) {
  Waves waves({{2, 2}}, {0, 0, 0, 0});
  for (std::size_t n = 0; n < 4; ++n) {
    const Waves::Cell cell = waves.take();
    EXPECT_EQ(cell.index, n);
    waves.end(cell);
  }
}

TEST(Waves, a_thread_goes_on_in_its_row_until_it_is_three_steps_ahead) {
  const std::vector<Grid> two{{2, 4}, {2, 4}};
  Waves waves(two, alike(two));
  for (const std::size_t index : {0u, 1u, 2u}) {
    const Waves::Cell cell = waves.take();
    EXPECT_EQ(cell.index, index) << "though the other grid has not begun";
    waves.end(cell);
  }
  EXPECT_EQ(waves.take().index, 8u);
}

// Which needs the one above and the one on the left: one of them does not do, whatever else may begin.
TEST(Waves, a_cell_waits_for_both_that_it_needs) {
  for (const std::size_t first : {1u, 2u}) {
    const std::vector<Grid> two{{2, 2}, {1, 3}};
    Waves waves(two, alike(two));
    const Waves::Cell corner = waves.take(), other = waves.take();
    waves.end(corner), waves.end(other);
    const Waves::Cell second = waves.take(), right = waves.take(), below = waves.take();
    ASSERT_EQ(right.index, 1u);
    ASSERT_EQ(below.index, 2u);
    waves.end(second);
    waves.end(first == 1 ? right : below);
    EXPECT_EQ(waves.take().index, 6u) << "the last of the other grid, though it comes later";
    waves.end(first == 1 ? below : right);
    EXPECT_EQ(waves.take().index, 3u);
  }
}

TEST(Waves, one_that_has_gone_to_sleep_is_woken) {
  const std::vector<Grid> row{{1, 2}};
  Waves waves(row, alike(row));
  const Waves::Cell first = waves.take();
  std::size_t taken = 0;
  std::thread other([&] { taken = waves.take().index; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it looks for less
  waves.end(first);
  other.join();
  EXPECT_EQ(taken, 1u);
}

TEST(Waves, many_threads_get_every_cell_after_those_it_needs) {
  for (int round = 0; round < 50; ++round) {
    Waves waves(grids, alike(grids));
    Ended ended;
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (std::size_t n = 0; n < cells_of(grids); ++n)
      threads.emplace_back([&] {
        const Waves::Cell cell = waves.take();
        wrong += ended.end(cell) ? 0 : 1;
        waves.end(cell);
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(wrong, 0);
  }
}

}  // namespace
}  // namespace heed::threads
