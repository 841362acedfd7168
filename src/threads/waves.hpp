// SPDX-License-Identifier: Apache-2.0
// Tasks that come in grids, of which each needs the one before it in its row and the one before it in its
// column. Whoever is free takes the one after which most must still follow, one after another: so all that
// could run together do, the grids end together, and whatever runs the tasks, there is always one that may
// begin or one under way. One that follows in the row of the thread's last task, whose memory is in its
// core's cache, is taken before one with a little more behind it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace heed::threads {

struct Grid {
  std::int64_t rows, columns;
  std::size_t cells() const { return static_cast<std::size_t>(rows * columns); }
};

class Waves {
 public:
  struct Cell {
    std::size_t grid, index;  // among all cells: grid after grid, row after row
  };

  // How long each cell takes, about, in any unit.
  Waves(const std::vector<Grid>&, const std::vector<float>& times);

  // A cell whose predecessors have ended; waits while there is none. To be called once for every cell.
  Cell take();
  // What was written before is seen by whoever takes a cell that this one kept waiting.
  void end(const Cell&);

 private:
  struct State {
    std::size_t grid, place;  // in the order in which cells are wanted
    float path;               // the time of the longest way from it to the end of its grid
    bool has_right, has_below;
    std::atomic<int> missing;  // predecessors that have not ended
  };

  void lay_out(std::size_t grid, std::size_t first_cell, const std::vector<float>& times);
  void put_in_order();
  std::size_t first_ready() const;
  std::size_t next_of_this_thread() const;
  bool is_ready(std::size_t cell) const;
  bool claim(std::size_t cell);
  void lose_predecessor(std::size_t cell);
  void make_ready(std::size_t cell);
  void wait_for_ready();

  std::vector<Grid> grids_;
  float unit_;  // of paths that are told apart
  std::vector<State> cells_;
  std::vector<std::size_t> order_;                 // cells, those with the longest paths first
  std::vector<std::atomic<std::uint64_t>> ready_;  // a bit for each place in the order
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;  // taken only to sleep and to wake
  std::condition_variable more_;
};

}  // namespace heed::threads
