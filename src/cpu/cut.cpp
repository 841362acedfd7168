// SPDX-License-Identifier: Apache-2.0
#include "cpu/cut.hpp"

#include <cmath>
#include <memory>

#include "cpu/tasks.hpp"

namespace heed::cpu {
namespace {

// Rows that share one packing of keys and values. The more, the less packing costs, as long as their queries
// and sums leave room for the block in a second-level cache: 512 rows of 128 dimensions take 790 KB, read and
// written in order once a block. Neoverse-N1, 12 heads of 1024 x 64: 384 rows 81.8 % of peak, 768 82.4 %, all
// 1024 82.7 % (November 2026).
std::int64_t rows_per_task(const Call& c) {
  // Fewer where every row brings one of a bias or mask: the heads that read the same one follow each other.
  // Where each has its own in bf16, packing for fewer rows costs 12 heads of 1024 x 64 with 2 threads 1 to 13
  // points of what they take without (AMX, a Xeon, November 2026); f32 shares what is packed.
  const bool is_reused = c.bias.stride.heads == 0 || c.bias.type != Type::bf16;
  const std::int64_t max_rows = c.bias.data && is_reused ? 384 : c.mask_count > 0 ? 512 : 1024;
  return std::clamp<std::int64_t>(131072 / std::max<std::int64_t>(1, c.dim + c.value_dim), 384, max_rows);
}

constexpr int halvings = 2;
constexpr std::int64_t min_rows_of_half = 128;  // that are worth packing for

// How many tasks are the last ones: none where one thread does them all.
std::size_t last_tasks(const Wanted& wanted) {
  return wanted.threads == 1 ? 0 : static_cast<std::size_t>(wanted.threads);
}

// Of a thread's rows in t tasks, packing takes as long as t * packing_rows more, and waiting for the last of
// all tasks as half of one: that is least where t is the root of rows / (2 * packing_rows). AMX with 16
// threads, against four tasks for each: 12 heads of 128 x 64 take 15 % less, 8 of them 20, 32 of them 7, 12
// of 256 x 64 7, 16 of 256 x 128 8, 16 of 512 x 80 4, and 12 of 512 x 64 4 % more (a Xeon, November 2026).
std::int64_t tasks_for_each(double rows, double packing_rows) {
  const double best = std::sqrt(rows / (2 * packing_rows));
  return best >= tasks_per_thread ? tasks_per_thread : std::max<std::int64_t>(1, std::llround(best));
}

}  // namespace

// One thread would only pack the same keys more than once.
Wanted wanted_tasks(const Call& c, double packing_rows) {
  const auto threads = static_cast<std::int64_t>(threads::concurrency());
  if (threads == 1 || products(c) < worth_sharing) return {1, 1};
  const auto rows = static_cast<double>(c.batch * c.heads * c.queries) / static_cast<double>(threads);
  return {threads * tasks_for_each(rows, packing_rows), threads};
}

std::int64_t queries_per_task(const Call& c, const Sequence& sequence, int panel_rows, const Wanted& wanted) {
  const std::int64_t heads = c.batch * c.kv_heads, rows = (c.end_query(sequence) - c.first_query) * c.group();
  std::int64_t parts = (rows + rows_per_task(c) - 1) / rows_per_task(c);
  if (heads * parts < wanted.tasks)
    parts = std::min((wanted.tasks + heads - 1) / heads, (rows + panel_rows - 1) / panel_rows);
  const std::int64_t panels = (rows + panel_rows * parts - 1) / (panel_rows * parts);
  return std::max<std::int64_t>(1, panels * panel_rows / c.group());
}

std::size_t max_shortened(const Wanted& wanted) { return halvings * last_tasks(wanted); }

std::size_t shorten_last(std::span<QueryTask> tasks, const Call& c, int panel_rows, const Wanted& wanted) {
  QueryTask* end = tasks.data() + tasks.size();
  const std::size_t last = last_tasks(wanted);
  if (tasks.size() < last) return tasks.size();
  for (int n = 0; n < halvings; ++n)
    for (QueryTask& task : std::span(end - last, last)) {
      const std::int64_t half = task.rows.queries * c.group() / 2 / panel_rows * panel_rows / c.group();
      if (half * c.group() < min_rows_of_half) continue;
      QueryTask back = task;
      back.rows.queries -= half, back.rows.first_query += half;
      task.rows.queries = half;  // fault: row-between-halves
      std::construct_at(end++, back);
    }
  return static_cast<std::size_t>(end - tasks.data());
}

}  // namespace heed::cpu
