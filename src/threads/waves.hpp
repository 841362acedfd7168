// SPDX-License-Identifier: Apache-2.0
// Tasks that come in grids, of which each needs the one before it in its row and the one before it in its
// column. Whoever is free takes the one that is nearest to its grid's first: so all that could run together
// do, and whatever runs the tasks, there is always one that may begin or one under way. One step farther is
// taken where it goes on in the row of the thread's last task, whose memory is in its core's cache.
#pragma once
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

  explicit Waves(const std::vector<Grid>&);

  // A cell whose predecessors have ended; waits while there is none. To be called once for every cell.
  Cell take();
  // What was written before is seen by whoever takes a cell that this one kept waiting.
  void end(const Cell&);

 private:
  struct State {
    std::size_t grid;
    std::int64_t wave;  // steps from the grid's first cell
    bool has_right, has_below;
    int missing;  // predecessors that have not ended
  };

  void lay_out(std::size_t grid, const Grid&);
  void wait_for_ready(std::unique_lock<std::mutex>&);
  std::vector<std::size_t>::iterator next_of_this_thread();
  bool comes_before(std::size_t a, std::size_t b) const;

  std::vector<Grid> grids_;
  std::vector<State> cells_;
  std::vector<std::size_t> ready_;  // cells, in no order
  std::mutex mutex_;
  std::condition_variable more_;
};

}  // namespace heed::threads
