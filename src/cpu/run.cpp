// SPDX-License-Identifier: Apache-2.0
#include "cpu/run.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "cpu/lower.hpp"
#include "cpu/tasks.hpp"
#include "threads/kept_memory.hpp"
#include "threads/pool.hpp"
#include "threads/scratch.hpp"

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
// How many tasks a call should make at least: one thread would only pack the same keys more than once.
std::int64_t wanted_tasks(const Call& c) {
  const auto threads = static_cast<std::int64_t>(threads::concurrency());
  return threads == 1 || products(c) < worth_sharing ? 1 : threads * tasks_per_thread;
}

// How many queries of a sequence make a task: whole panels in every task but the last, whatever the group.
std::int64_t queries_per_task(const Call& c, const Sequence& sequence, int panel_rows) {
  const std::int64_t heads = c.batch * c.kv_heads, rows = sequence.queries * c.group();
  std::int64_t parts = (rows + rows_per_task(c) - 1) / rows_per_task(c);
  const std::int64_t wanted = wanted_tasks(c);
  if (heads * parts < wanted)
    parts = std::min((wanted + heads - 1) / heads, (rows + panel_rows - 1) / panel_rows);
  const std::int64_t panels = (rows + panel_rows * parts - 1) / (panel_rows * parts);
  return std::max<std::int64_t>(1, panels * panel_rows / c.group());
}

struct QueryTask {
  std::int64_t cost;
  Rows rows;
};

// Longest tasks first: the last queries of a causal problem see the most keys.
std::vector<QueryTask> cut_along_queries(const Call& c, int panel_rows) {
  std::vector<QueryTask> tasks;
  tasks.reserve(static_cast<std::size_t>(c.batch * c.kv_heads));
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const Sequence& s = c.sequences[b];
    const std::int64_t step = s.queries == 0 ? 1 : queries_per_task(c, s, panel_rows);
    for (std::int64_t first = 0; first < s.queries; first += step) {
      const std::int64_t queries = std::min(step, s.queries - first);
      const std::int64_t keys = std::clamp<std::int64_t>(first + queries - 1 + s.end_offset, 0, s.key_count);
      for (std::int64_t h = 0; h < c.kv_heads; ++h) tasks.push_back({queries * keys, {b, h, first, queries}});
    }
  }
  const auto costs_more = [](const QueryTask& a, const QueryTask& z) { return a.cost > z.cost; };
  if (!std::is_sorted(tasks.begin(), tasks.end(), costs_more))  // sorting would allocate
    std::stable_sort(tasks.begin(), tasks.end(), costs_more);
  return tasks;
}

// A chunk of keys for all rows of a sequence that read one KV head.
struct KeyTask {
  Rows rows;
  std::int64_t chunk;
  std::int64_t chunks = 0;  // that these rows have, where this is the first of them
};

// The chunks of keys that some row may see: those of the front, then those of the band; at least one, which
// then says that nothing was seen.
void add_chunks(const Call& c, const Rows& rows, std::vector<KeyTask>& tasks) {
  const Sequence& s = c.sequences[rows.batch_entry];
  const std::size_t first = tasks.size();
  const std::int64_t end = std::clamp<std::int64_t>(s.queries - 1 + s.end_offset, 0, s.key_count);
  const std::int64_t front = std::min(c.front, end);
  for (std::int64_t chunk = 0; chunk < front; chunk += chunk_keys) tasks.push_back({rows, chunk});
  const std::int64_t band = std::clamp<std::int64_t>(s.first_offset, 0, s.key_count);
  for (std::int64_t chunk = band / chunk_keys * chunk_keys; chunk < end; chunk += chunk_keys)
    if (chunk >= front) tasks.push_back({rows, chunk});
  if (tasks.size() == first) tasks.push_back({rows, 0});
  tasks[first].chunks = std::ssize(tasks) - static_cast<std::int64_t>(first);
}

std::vector<KeyTask> cut_along_keys(const Call& c) {
  std::vector<KeyTask> tasks;
  tasks.reserve(static_cast<std::size_t>(c.batch * c.kv_heads));
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; c.sequences[b].queries > 0 && h < c.kv_heads; ++h)
      add_chunks(c, {b, h, 0, c.sequences[b].queries}, tasks);
  return tasks;
}

// Rows that share a KV head, up to which its keys are better read where they lie than packed. Prefill can
// leave out keys that masks hide from a panel, and spread one head's rows over threads.
std::int64_t most_rows_in_place(const Target& target, const Problem& p) {
  const bool is_f32 = p.inputs.q.dtype == DType::f32 && p.kv_type == CacheType::f32;
  const bool sees_all = p.options.masks.empty();
  const bool is_shared_by_heads = p.batch * p.kv_heads >= static_cast<std::int64_t>(threads::concurrency());
  return is_f32 && p.keys <= block_keys && sees_all && is_shared_by_heads ? target.most_short_rows
                                                                          : most_decode_rows;
}

}  // namespace

std::string& forced_target() {
  static std::string forced = [] {
    const char* name = std::getenv("HEED_TARGET");
    return std::string(name ? name : "");
  }();
  return forced;
}

Reason unavailable(const Target& target) {
  if (!target.available()) return [&target] { return std::string("this machine lacks ") + target.requires_; };
  if (!forced_target().empty() && forced_target() != target.name)
    return [] { return "HEED_TARGET is " + forced_target(); };
  return {};
}

const Target& best_target() {
  for (const Target* target : targets())
    if (target->project && !unavailable(*target)) return *target;
  return *targets().back();
}

// Kernels count places in f32, and add what the farthest key loses to its score in base 2.
bool alibi_leaves_f32(const Problem& p) {
  constexpr std::int64_t most_exact = std::int64_t{1} << 24;
  const std::int64_t farthest = p.queries + p.keys;
  float steepest = 0;
  for (const float slope : p.options.alibi->slopes) steepest = std::max(steepest, std::abs(slope));
  return farthest > most_exact || !std::isfinite(in_base_2(steepest * static_cast<float>(farthest)));
}

Reason prefill_refuses(const Target& target, const Problem& p) {
  if (target.only_bf16 && p.inputs.q.dtype != DType::bf16)
    return [&p] { return std::string("it takes bf16, not ") + name_of(p.inputs.q.dtype); };
  if (target.only_bf16 && p.kv_type != CacheType::bf16)
    return [&p] { return std::string("it takes a cache of bf16, not ") + name_of(p.kv_type); };
  if (!std::isfinite(in_base_2(p.scale)))
    return [] { return std::string("options.scale times log2(e) is beyond the range of f32"); };
  if (p.options.softcap && !std::isfinite(in_base_2(*p.options.softcap)))
    return [] { return std::string("options.softcap times log2(e) is beyond the range of f32"); };
  if (p.options.alibi && alibi_leaves_f32(p))
    return [] { return std::string("options.alibi times the farthest distance is beyond what f32 counts"); };
  return {};
}

bool prefill(const Target& target, const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  if (c.heads == 0) return false;
  const std::vector<QueryTask> tasks = cut_along_queries(c, target.panel_rows);
  if (tasks.empty()) return false;
  std::int64_t most_queries = 0;
  for (const QueryTask& task : tasks) most_queries = std::max(most_queries, task.rows.queries);
  threads::Scratch scratch(std::min(tasks.size(), threads::concurrency()),
                           target.prefill_floats(c, most_queries * c.group()));
  share_out(std::ssize(tasks), products(c), [&](std::int64_t n) {
    const threads::Scratch::Lease lease(scratch);
    target.prefill(c, tasks[static_cast<std::size_t>(n)].rows, lease.floats());
  });
  return lowered.left_range != 0;
}

Reason decode_refuses(const Target& target, const Problem& p) {
  const std::int64_t rows = p.kv_heads == 0 ? 0 : p.heads / p.kv_heads * p.queries;
  if (const std::int64_t at_most = most_rows_in_place(target, p); rows > at_most)
    return [rows, at_most] {
      return std::to_string(rows) + " rows share a KV head; it takes at most " + std::to_string(at_most);
    };
  if (p.outputs.scores.into) return [] { return std::string("scores were asked for"); };
  // Scores wait in the weights' own rows until the sum is known, which takes all their bits.
  if (p.outputs.weights && (p.outputs.weights->dtype != DType::f32 || target.only_bf16))
    return [&p] { return "weights were asked for in " + std::string(name_of(p.outputs.weights->dtype)); };
  return prefill_refuses(target, p);
}

// Rows whose keys are one chunk are finished where they were computed, while what it left is in the cache.
bool decode(const Target& target, const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  if (c.heads == 0) return false;
  const std::vector<KeyTask> tasks = cut_along_keys(c);
  if (tasks.empty()) return false;
  const bool merges = std::any_of(tasks.begin(), tasks.end(), [](const KeyTask& t) { return t.chunks != 1; });
  const std::int64_t own = target.decode_floats(c), left = target.partial_floats(c);
  const threads::KeptMemory partials =
      merges ? threads::take_memory(tasks.size() * static_cast<std::size_t>(left)) : threads::KeptMemory();
  threads::Scratch scratch(std::min(tasks.size(), threads::concurrency()), own + left);
  share_out(std::ssize(tasks), products(c), [&](std::int64_t n) {
    const auto& [rows, chunk, chunks] = tasks[static_cast<std::size_t>(n)];
    const threads::Scratch::Lease lease(scratch);
    float* partial = chunks == 1 ? lease.floats() + own : partials.get() + n * left;
    target.decode(c, rows, chunk, lease.floats(), partial);
    if (chunks == 1) target.decode_finish(c, rows, 1, lease.floats(), partial);
  });
  if (!merges) return lowered.left_range != 0;
  share_out(std::ssize(tasks), products(c) / chunk_keys, [&](std::int64_t n) {
    const KeyTask& task = tasks[static_cast<std::size_t>(n)];
    if (task.chunks < 2) return;
    const threads::Scratch::Lease lease(scratch);
    target.decode_finish(c, task.rows, task.chunks, lease.floats(), partials.get() + n * left);
  });
  return lowered.left_range != 0;
}

}  // namespace heed::cpu
