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
// More rows than this are worth packing keys for.
constexpr std::int64_t most_decode_rows = 32;

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

double products(const Call& c) {
  return static_cast<double>(c.batch * c.heads) * static_cast<double>(c.queries) *
         static_cast<double>(c.keys) * static_cast<double>(c.dim + c.value_dim);
}

template <class Body>
void share_out(std::int64_t tasks, double multiplications, const Body& body) {
  const auto one = [&](std::size_t n) { body(static_cast<std::int64_t>(n)); };
  if (multiplications >= worth_sharing) return parallel_for(static_cast<std::size_t>(tasks), one);
  for (std::int64_t n = 0; n < tasks; ++n) body(n);
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
    if (target->project && unavailable(*target).empty()) return *target;
  return *targets().back();
}

std::string prefill_refuses(const Target& target, const Problem& p) {
  if (target.only_bf16 && p.inputs.q.dtype != DType::bf16)
    return std::string("it takes bf16, not ") + name_of(p.inputs.q.dtype);
  return {};
}

void prefill(const Target& target, const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  if (c.batch == 0 || c.heads == 0 || c.queries == 0) return;
  const Cut parts = cut(c, target.panel_rows);
  const std::int64_t tasks = c.batch * c.kv_heads * parts.tasks_per_head;
  Scratch scratch(std::min(static_cast<std::size_t>(tasks), concurrency()),
                  target.prefill_floats(c, parts.queries_per_task * c.group()));
  share_out(tasks, products(c), [&](std::int64_t task) {
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
  });
}

std::string decode_refuses(const Target& target, const Problem& p) {
  const std::int64_t rows = p.kv_heads == 0 ? 0 : p.heads / p.kv_heads * p.queries;
  if (rows > most_decode_rows)
    return std::to_string(rows) + " rows share a KV head; it takes at most " +
           std::to_string(most_decode_rows);
  if (p.outputs.weights || p.outputs.scores) return "weights or scores were asked for";
  return prefill_refuses(target, p);
}

void decode(const Target& target, const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  if (c.batch == 0 || c.heads == 0 || c.queries == 0) return;
  // Chunks that some row may see; at least one, which then says that nothing was seen.
  const std::int64_t begin = std::clamp<std::int64_t>(c.first_offset, 0, c.keys) / chunk_keys;
  const std::int64_t end_key = std::clamp<std::int64_t>(c.queries - 1 + c.end_offset, 0, c.keys);
  const std::int64_t chunks = std::max<std::int64_t>(1, (end_key + chunk_keys - 1) / chunk_keys - begin);
  const std::int64_t heads = c.batch * c.kv_heads, floats = target.partial_floats(c);
  Scratch partials(1, heads * chunks * floats);
  Scratch scratch(std::min(static_cast<std::size_t>(heads * chunks), concurrency()), target.decode_floats(c));
  const Scratch::Lease all(partials);
  const auto rows = [&](std::int64_t head) {
    return Rows{head / c.kv_heads, head % c.kv_heads, 0, c.queries};
  };
  share_out(heads * chunks, products(c), [&](std::int64_t task) {
    const Scratch::Lease lease(scratch);
    target.decode(c, rows(task / chunks), (begin + task % chunks) * chunk_keys, lease.floats(),
                  all.floats() + task * floats);
  });
  for (std::int64_t head = 0; head < heads; ++head) {
    const Scratch::Lease lease(scratch);
    target.decode_finish(c, rows(head), chunks, lease.floats(), all.floats() + head * chunks * floats);
  }
}

}  // namespace heed::cpu
