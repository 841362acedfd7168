// SPDX-License-Identifier: Apache-2.0
#include "cpu/cut.hpp"

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

}  // namespace heed::cpu
