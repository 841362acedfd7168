// SPDX-License-Identifier: Apache-2.0
#include "cpu/backward/cut.hpp"

#include <algorithm>
#include <cmath>

#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

// Sums of dQ that one KV head may have, in floats: with more, rows had better be tasks of their own.
constexpr std::int64_t max_row_sums = std::int64_t{1} << 24;
// Floats that all KV heads may take where all are under way at once, 128 MiB: the sums of dQ, dK and dV, the
// packed keys, the memory of every thread (0.35 MiB at 64 dimensions), and the list of cells.
constexpr std::int64_t max_shared_floats = std::int64_t{1} << 25, floats_per_thread = std::int64_t{1} << 17,
                       floats_per_cell = 28;
constexpr std::int64_t max_cells = std::int64_t{1} << 16;  // about: steps are whole blocks
// Rows of a task that goes through all keys: the more, the less packing keys costs.
constexpr std::int64_t max_rows_per_task = 1056;
// Blocks of rows of a part that shares its sums, at least: a single one is read from the cache of another
// core, and nothing can be done before its first lines arrive. 12 heads of 1024 x 64 on 16 threads of a Xeon
// took 6.66 ms with one block, 6.06 with two, 6.01 with three (November 2026). The fewer, the shorter threads
// wait for the last part.
constexpr std::int64_t min_shared_blocks = 2;
// The share of a task's time by which one thread takes longer than another for the same work: neighbours on
// the machine, or other cores. With a task for each of 16 heads, 16 threads spent 24 % of their time waiting
// for the last.
constexpr double unevenness = 0.2;
// What several tasks for a head take more than one.
constexpr double cost_of_cutting = 1.1;

std::int64_t ceil_div(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

enum class Way : std::uint8_t {
  whole,       // one pass, a task for every KV head
  shared,      // one pass, a grid of tasks for a KV head, which add to its sums one after another. Of many
               // heads only the last, one or two for each thread, are grids, so that all threads end together
  two_passes,  // over rows and over keys: seven products instead of five, but no task waits for another
};

class Planner {
 public:
  explicit Planner(const GradientCall& call)
      : g(call),
        c(call.forward),
        heads(std::max<std::int64_t>(1, c.batch * c.kv_heads)),
        parallel(products(c) < worth_sharing ? 1 : static_cast<std::int64_t>(threads::concurrency())),
        whole_heads(std::max<std::int64_t>(0, heads / parallel - 1) * parallel) {}

  // The way of the shortest time, in products of one KV head.
  Way way() const {
    const std::int64_t sums = c.queries * c.group() * c.dim;
    if (!g.q.data || (!g.k.data && !g.v.data) || sums > max_row_sums) return Way::two_passes;
    const auto rounds = static_cast<double>(ceil_div(heads, parallel));
    const double whole = 5 * (parallel > 1 ? rounds + unevenness : rounds),
                 twice = 7 * cost_of_cutting * per_thread(heads),
                 shared = shared_floats() > max_shared_floats
                              ? twice
                              : 5 * (per_thread(whole_heads) + cost_of_cutting * shared_time());
    if (whole <= std::min(twice, shared)) return Way::whole;
    return shared < twice ? Way::shared : Way::two_passes;
  }

  // A KV head as one task.
  void cut_whole(std::int64_t b, std::int64_t h, std::vector<GradientPart>& parts) const {
    const Sequence& s = c.sequences[b];
    parts.push_back({b, h, 0, s.queries * c.group(), 0, s.keys, true, true});
  }

  // A KV head as a grid of (rows, keys), or of one cell.
  void cut_grid(std::int64_t b, std::int64_t h, GradientCut& cut) const {
    const bool is_whole = b * c.kv_heads + h < whole_heads;
    const std::size_t first = cut.parts.size();
    if (is_whole)
      cut_whole(b, h, cut.parts), cut.grids.push_back({1, 1});
    else
      cut.grids.push_back(cut_cells(b, h, cut.parts));
    for (std::size_t n = first; n < cut.parts.size(); ++n) cut.times.push_back(pairs_of(cut.parts[n]));
  }

  void cut_twice(std::int64_t b, std::int64_t h, std::vector<GradientPart>& parts) const {
    const Sequence& s = c.sequences[b];
    const std::int64_t rows = s.queries * c.group();
    const std::int64_t row_step =
        gradient_rows * blocks_per_task(ceil_div(rows, gradient_rows), max_rows_per_task / gradient_rows);
    const std::int64_t key_step = gradient_keys * blocks_per_task(ceil_div(s.keys, gradient_keys), 8);
    for (std::int64_t row = 0; g.q.data && row < rows; row += row_step)
      parts.push_back({b, h, row, std::min(row_step, rows - row), 0, s.keys, true, false});
    for (std::int64_t key = 0; (g.k.data || g.v.data) && key < s.keys; key += key_step)
      parts.push_back({b, h, 0, rows, key, std::min(key_step, s.keys - key), false, true});
  }

 private:
  threads::Grid cut_cells(std::int64_t b, std::int64_t h, std::vector<GradientPart>& parts) const {
    const Sequence& s = c.sequences[b];
    const std::int64_t rows = s.queries * c.group(), row_step = shared_rows(), key_step = shared_keys();
    const threads::Grid grid{std::max<std::int64_t>(1, ceil_div(rows, row_step)),
                             std::max<std::int64_t>(1, ceil_div(s.keys, key_step))};
    for (std::int64_t row = 0; row < grid.rows * row_step; row += row_step)
      for (std::int64_t key = 0; key < grid.columns * key_step; key += key_step)
        parts.push_back({b, h, row, std::min(row_step, rows - row), key, std::min(key_step, s.keys - key),
                         true, true, true});
    return grid;
  }

  // Rows times the keys before the end of what the last row sees.
  float pairs_of(const GradientPart& part) const {
    const Sequence& s = c.sequences[part.batch_entry];
    const std::int64_t last_query = (part.first_row + part.rows - 1) / std::max<std::int64_t>(1, c.group()),
                       end = std::min(s.key_count, last_query + s.end_offset);
    return static_cast<float>(part.rows * std::clamp<std::int64_t>(end - part.first_key, 0, part.keys));
  }

  double per_thread(std::int64_t n) const { return static_cast<double>(n) / static_cast<double>(parallel); }
  std::int64_t shared_heads() const { return heads - whole_heads; }

  // The time of the cells of one grid that must follow each other; or that of all cells on all threads, some
  // of which have nothing to do while few cells may begin, and while few remain.
  double shared_time() const {
    const auto rows = static_cast<double>(grid_rows()), keys = static_cast<double>(grid_columns());
    const double each = per_thread(shared_heads());
    return std::max((rows + keys - 1) / (rows * keys), each + 1 / (each * rows * keys));
  }

  std::int64_t shared_floats() const {
    const std::int64_t sums = c.queries * c.group() * c.dim + c.keys * (c.dim + c.value_dim),
                       packed = c.keys * (2 * c.dim + c.value_dim);
    return shared_heads() * (sums + packed + grid_rows() * grid_columns() * floats_per_cell) +
           parallel * floats_per_thread;
  }

  // Cells along each side of a grid, about: enough that more of them may begin than there are threads, nearly
  // all the time, but not so many that the list of cells grows beyond `max_cells`.
  std::int64_t side() const {
    const auto max_side =
        static_cast<std::int64_t>(std::sqrt(static_cast<double>(max_cells / shared_heads())));
    return std::max<std::int64_t>(1, std::min(16 * parallel / shared_heads(), max_side));
  }
  std::int64_t grid_rows() const { return ceil_div(c.queries * c.group(), shared_rows()); }
  std::int64_t grid_columns() const { return ceil_div(c.keys, shared_keys()); }
  std::int64_t shared_rows() const {
    return gradient_rows *
           std::max(min_shared_blocks, ceil_div(c.queries * c.group(), gradient_rows) / side());
  }
  std::int64_t shared_keys() const {
    return gradient_keys * std::max<std::int64_t>(1, ceil_div(c.keys, gradient_keys) / side());
  }

  // How many blocks make a task of two passes, so that there are enough tasks.
  std::int64_t blocks_per_task(std::int64_t blocks, std::int64_t max_blocks) const {
    const std::int64_t wanted = static_cast<std::int64_t>(threads::concurrency()) * tasks_per_thread,
                       parts = std::max<std::int64_t>(1, ceil_div(wanted, heads));
    return std::clamp<std::int64_t>(blocks / parts, 1, max_blocks);
  }

  const GradientCall& g;
  const Call& c;
  const std::int64_t heads, parallel;
  const std::int64_t whole_heads;  // the first ones: they are whole where the others are shared
};

}  // namespace

GradientCut cut_gradients(const GradientCall& g) {
  const Call& c = g.forward;
  const Planner planner(g);
  const Way way = planner.way();
  GradientCut cut;
  for (std::int64_t head = 0; head < c.batch * c.kv_heads; ++head) {
    const std::int64_t b = head / c.kv_heads, h = head % c.kv_heads;
    if (way == Way::whole) planner.cut_whole(b, h, cut.parts);
    if (way == Way::shared) planner.cut_grid(b, h, cut);
    if (way == Way::two_passes) planner.cut_twice(b, h, cut.parts);
  }
  return cut;
}

}  // namespace heed::cpu
