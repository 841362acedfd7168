// SPDX-License-Identifier: Apache-2.0
#include "cpu/run.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "cpu/lower.hpp"
#include "cpu/threads/pool.hpp"
#include "cpu/threads/scratch.hpp"

namespace heed::cpu {
namespace {

// Rows that share one packing of keys and values: 384 rows of 128 dimensions take 400 KB of queries and sums,
// which fits a 1 MiB second-level cache beside a 256 KB block, and make packing cost under 1 % of the
// products.
constexpr std::int64_t rows_per_task = 384;
constexpr std::int64_t tasks_per_thread =
    4;  // enough that the last task to end does not leave the others idle
// Below this many multiplications waking a thread (some 10 us) costs more than it saves.
constexpr double worth_sharing = 1e5;

struct Cut {
  std::int64_t queries_per_task, tasks_per_head;
};

Cut cut(const Call& c, int panel_rows) {
  const std::int64_t heads = c.batch * c.kv_heads, rows = c.queries * c.group();
  std::int64_t parts = (rows + rows_per_task - 1) / rows_per_task;
  const auto wanted = static_cast<std::int64_t>(concurrency()) * tasks_per_thread;
  if (heads * parts < wanted)
    parts = std::min((wanted + heads - 1) / heads, (rows + panel_rows - 1) / panel_rows);
  // Whole panels in every task but the last, whatever the group.
  const std::int64_t panels = (rows + panel_rows * parts - 1) / (panel_rows * parts);
  const std::int64_t queries = std::max<std::int64_t>(1, panels * panel_rows / c.group());
  return {queries, (c.queries + queries - 1) / queries};
}

}  // namespace

std::string unavailable(const Target& target) {
  if (!target.available()) return std::string("this machine lacks ") + target.requires_;
  const char* forced = std::getenv("HEED_TARGET");
  if (forced && *forced && std::string(forced) != target.name) return std::string("HEED_TARGET is ") + forced;
  return {};
}

const Target& best_target() {
  for (const Target* target : targets())
    if (unavailable(*target).empty()) return *target;
  return *targets().back();
}

void prefill(const Target& target, const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  if (c.batch == 0 || c.heads == 0 || c.queries == 0) return;
  const Cut parts = cut(c, target.panel_rows);
  const std::int64_t tasks = c.batch * c.kv_heads * parts.tasks_per_head;
  Scratch scratch(std::min(static_cast<std::size_t>(tasks), concurrency()),
                  target.prefill_floats(c, parts.queries_per_task * c.group()));
  const auto run_one = [&](std::size_t n) {
    const auto task = static_cast<std::int64_t>(n);
    // The last queries of a causal problem see the most keys: longest tasks first.
    const std::int64_t head = task % (c.batch * c.kv_heads);
    const std::int64_t part = parts.tasks_per_head - 1 - task / (c.batch * c.kv_heads);
    const std::int64_t first = part * parts.queries_per_task;
    const Scratch::Lease lease(scratch);
    target.prefill(c,
                   {.batch_entry = head / c.kv_heads,
                    .kv_head = head % c.kv_heads,
                    .first_query = first,
                    .queries = std::min(parts.queries_per_task, c.queries - first)},
                   lease.floats());
  };
  const double products = static_cast<double>(c.batch * c.heads) * static_cast<double>(c.queries) *
                          static_cast<double>(c.keys) * static_cast<double>(c.dim + c.value_dim);
  if (products < worth_sharing)
    for (std::int64_t n = 0; n < tasks; ++n) run_one(static_cast<std::size_t>(n));
  else
    parallel_for(static_cast<std::size_t>(tasks), run_one);
}

}  // namespace heed::cpu
