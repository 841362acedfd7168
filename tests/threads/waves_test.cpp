// SPDX-License-Identifier: Apache-2.0
// Cells of grids: each once, none before those that it needs.
#include "threads/waves.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace heed::threads {
namespace {

const std::vector<Grid> grids{{4, 6}, {1, 1}, {7, 1}, {1, 5}, {3, 3}};

std::size_t cells_of(const std::vector<Grid>& all) {
  std::size_t cells = 0;
  for (const Grid& grid : all) cells += grid.cells();
  return cells;
}

// Which cells have ended, by their place among all.
class Ended {
 public:
  // Whether those before it in its row and in its column have; marks it.
  bool end(const Waves::Cell& cell) {
    std::size_t first = 0;
    for (std::size_t n = 0; n < cell.grid; ++n) first += grids[n].cells();
    const auto columns = static_cast<std::size_t>(grids[cell.grid].columns), own = cell.index - first;
    const bool is_free =
        (own % columns == 0 || ended_[cell.index - 1]) && (own < columns || ended_[cell.index - columns]);
    return !ended_[cell.index].exchange(true) && is_free;
  }

 private:
  std::vector<std::atomic<bool>> ended_ = std::vector<std::atomic<bool>>(cells_of(grids));
};

TEST(Waves, one_thread_never_waits) {
  Waves waves(grids);
  Ended ended;
  for (std::size_t n = 0; n < cells_of(grids); ++n) {
    const Waves::Cell cell = waves.take();
    EXPECT_TRUE(ended.end(cell)) << cell.index;
    waves.end(cell);
  }
}

TEST(Waves, the_first_cells_of_all_grids_come_first) {
  Waves waves(grids);
  for (std::size_t n = 0; n < grids.size(); ++n) EXPECT_EQ(waves.take().grid, n);
}

TEST(Waves, a_thread_goes_on_in_its_row_until_a_cell_is_two_steps_behind) {
  Waves waves({{2, 3}, {2, 3}});
  const Waves::Cell corner = waves.take();
  waves.end(corner);
  const Waves::Cell right = waves.take();
  EXPECT_EQ(right.index, 1u) << "though the other grid has not begun";
  waves.end(right);
  EXPECT_EQ(waves.take().index, 6u);
}

// Which needs the one above and the one on the left: one of them does not do, whatever else may begin.
TEST(Waves, a_cell_waits_for_both_that_it_needs) {
  for (const std::size_t first : {1u, 2u}) {
    Waves waves({{2, 2}, {1, 3}});
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

TEST(Waves, many_threads_get_every_cell_after_those_it_needs) {
  for (int round = 0; round < 50; ++round) {
    Waves waves(grids);
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
