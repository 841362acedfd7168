// SPDX-License-Identifier: Apache-2.0
#include "cpu/cut.hpp"

#include <memory>

#include "cpu/tasks.hpp"

namespace heed::cpu {
namespace {

// Rows that share one packing of keys and values. The more, the less packing costs, as long as their queries
// and sums leave room for the block in a second-level cache: 512 rows of 128 dimensions take 790 KB, read and
// written in order once a block. Neoverse-N1, 12 heads of 1024 x 64: 384 rows 81.8 % of peak, 768 82.4 %, all
// 1024 82.7 % (November 2026).
std::int64_t rows_per_task(const Call& c) {
  // Fewer where every row brings a row of a mask: the heads that read the same one follow each other.
  const std::int64_t most_rows = c.mask_count > 0 || c.bias.data ? 384 : 1024;
  return std::clamp<std::int64_t>(131072 / std::max<std::int64_t>(1, c.dim + c.value_dim), 384, most_rows);
}

constexpr int halvings = 2;
constexpr std::int64_t least_rows_of_half = 128;  // that are worth packing for

// How many tasks are the last ones: none where one thread does them all.
std::size_t last_tasks(std::int64_t wanted) { return static_cast<std::size_t>(wanted / tasks_per_thread); }

}  // namespace

// One thread would only pack the same keys more than once.
std::int64_t wanted_tasks(const Call& c) {
  const auto threads = static_cast<std::int64_t>(threads::concurrency());
  return threads == 1 || products(c) < worth_sharing ? 1 : threads * tasks_per_thread;
}

std::int64_t queries_per_task(const Call& c, const Sequence& sequence, int panel_rows, std::int64_t wanted) {
  const std::int64_t heads = c.batch * c.kv_heads, rows = (c.end_query(sequence) - c.first_query) * c.group();
  std::int64_t parts = (rows + rows_per_task(c) - 1) / rows_per_task(c);
  if (heads * parts < wanted)
    parts = std::min((wanted + heads - 1) / heads, (rows + panel_rows - 1) / panel_rows);
  const std::int64_t panels = (rows + panel_rows * parts - 1) / (panel_rows * parts);
  return std::max<std::int64_t>(1, panels * panel_rows / c.group());
}

std::size_t most_shortened(std::int64_t wanted) { return halvings * last_tasks(wanted); }

std::size_t shorten_last(std::span<QueryTask> tasks, const Call& c, int panel_rows, std::int64_t wanted) {
  QueryTask* end = tasks.data() + tasks.size();
  const std::size_t last = last_tasks(wanted);
  if (tasks.size() < last) return tasks.size();
  for (int n = 0; n < halvings; ++n)
    for (QueryTask& task : std::span(end - last, last)) {
      const std::int64_t half = task.rows.queries * c.group() / 2 / panel_rows * panel_rows / c.group();
      if (half * c.group() < least_rows_of_half) continue;
      QueryTask back = task;
      back.rows.queries -= half, back.rows.first_query += half;
      task.rows.queries = half;
      std::construct_at(end++, back);
    }
  return static_cast<std::size_t>(end - tasks.data());
}

}  // namespace heed::cpu
