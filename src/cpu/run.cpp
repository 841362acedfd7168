// SPDX-License-Identifier: Apache-2.0
#include "cpu/run.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <span>

#include "cpu/backend.hpp"
#include "cpu/cut.hpp"
#include "cpu/lower.hpp"
#include "cpu/shared_blocks.hpp"
#include "cpu/shared_mask.hpp"
#include "cpu/stripes.hpp"
#include "cpu/tasks.hpp"
#include "softmax/scaling.hpp"
#include "threads/allowed.hpp"
#include "threads/pool.hpp"
#include "threads/scratch.hpp"

namespace heed::cpu {
namespace {

// Rows that share a KV head, up to which its keys are better read where they lie than packed. Prefill can
// leave out keys that masks hide from a panel, and spread one head's rows over threads.
std::int64_t max_rows_in_place(const Target& target, const Problem& p) {
  const bool is_f32 = p.inputs.q.dtype == DType::f32 && p.kv_type == CacheType::f32;
  const bool sees_all = p.options.masks.empty();
  const bool is_shared_by_heads = p.batch * p.kv_heads >= static_cast<std::int64_t>(threads::concurrency());
  return is_f32 && p.keys <= block_keys && sees_all && is_shared_by_heads ? target.max_short_rows
                                                                          : max_decode_rows;
}

std::int64_t in_lines(std::int64_t floats) {
  return static_cast<std::int64_t>(
      threads::floats_in_lines(static_cast<std::size_t>(floats) * sizeof(float)));
}

std::size_t slots_for(std::size_t tasks) { return tasks == 1 ? 1 : std::min(tasks, threads::concurrency()); }

}  // namespace

namespace {

std::string target_variable() {
  const char* const name = std::getenv("HEED_TARGET");
  return name ? name : "";
}

// Null where this build has none of that name.
const Target* target_named(const std::string& name) {
  for (const Target* target : targets())
    if (target->name == name) return target;
  return nullptr;
}

}  // namespace

std::string target_variable_fault() {
  const std::string name = target_variable();
  if (name.empty()) return "";
  if (const Target* const target = target_named(name)) {
    if (target->available()) return "";
    return "HEED_TARGET: this machine lacks " + std::string(target->requires_) + " for '" + name +
           "', and only the reference is left";
  }
  std::string known;
  for (const Target* target : targets()) known += (known.empty() ? "" : ", ") + std::string(target->name);
  constexpr std::size_t longest_quoted = 100;
  return "HEED_TARGET: '" + name.substr(0, longest_quoted) + "' is no target of this build, which has " +
         known + ", and is ignored";
}

std::string& forced_target() {
  static std::string& forced = *[] {  // never destroyed, as the backend
    if (const std::string fault = target_variable_fault(); !fault.empty()) threads::warn(fault);
    return new std::string(target_named(target_variable()) ? target_variable() : "");
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
    if (!target->only_bf16 && !unavailable(*target)) return *target;
  return *targets().back();
}

const Target* best_bf16_target() {
  for (const Target* target : targets())
    if (target->only_bf16 && !unavailable(*target)) return target;
  return nullptr;
}

// What is added to scores or limits them, in the units that kernels have for them.
bool leaves_f32(const Problem& p, float x) {
  const softmax::Scaling scaling = softmax::scaling_of(p.scale, p.options.softcap.value_or(0.0f));
  return !std::isfinite(softmax::in_base_2(x)) || !std::isfinite(scaling.in_units(x));
}

// Kernels count places in f32, and add what the farthest key loses to its score.
bool alibi_leaves_f32(const Problem& p) {
  constexpr std::int64_t max_exact = std::int64_t{1} << 24;
  const std::int64_t farthest = p.queries + p.keys;
  float steepest = 0;
  for (const float slope : p.options.alibi->slopes) steepest = std::max(steepest, std::abs(slope));
  return farthest > max_exact || leaves_f32(p, steepest * static_cast<float>(farthest));
}

Reason prefill_refuses(const Target& target, const Problem& p) {
  if (target.only_bf16 && p.inputs.q.dtype != DType::bf16)
    return [&p] { return std::string("it takes bf16, not ") + name_of(p.inputs.q.dtype); };
  if (target.only_bf16 && p.kv_type != CacheType::bf16)
    return [&p] { return std::string("it takes a cache of bf16, not ") + name_of(p.kv_type); };
  if (!std::isfinite(softmax::in_base_2(p.scale)))
    return [] { return std::string("options.scale times log2(e) is beyond the range of f32"); };
  if (p.options.softcap && leaves_f32(p, *p.options.softcap))
    return [] { return std::string("options.softcap in units of the scores is beyond the range of f32"); };
  if (p.options.alibi && alibi_leaves_f32(p))
    return [] { return std::string("options.alibi times the farthest distance is beyond what f32 counts"); };
  return {};
}

namespace {

// What a slot has of a mask that heads share, on a line of its own.
struct alignas(64) MaskSlot {
  std::int64_t stripe = Stripes::none;
  TransposedPanels transposed{};
};

std::size_t floats_for_stripes(std::size_t slots, std::size_t tasks) {
  return threads::floats_in_lines(slots * sizeof(MaskSlot) + Stripes::bytes_for(tasks));
}

// Tasks that share a mask, in memory of so many floats. What a task has of a slot is followed by its
// mask.
void run_in_stripes(const Target& target, const Call& c, std::span<const QueryTask> tasks,
                    threads::Scratch& scratch, std::size_t slots, std::int64_t task_floats, float* memory) {
  auto* const masks = reinterpret_cast<MaskSlot*>(memory);
  std::uninitialized_value_construct_n(masks, slots);
  const Stripes stripes(tasks, c.shared, masks + slots);
  share_out(std::ssize(tasks), products(c), [&](std::int64_t) {
    const threads::Scratch::Lease lease(scratch);
    MaskSlot& mask = masks[lease.slot()];
    const Rows& task = tasks[static_cast<std::size_t>(stripes.take(mask.stripe))].rows;
    const Call with = with_mask_of(task, c, target, mask.transposed, lease.floats() + task_floats);
    target.prefill(with, task, lease.floats());
  });
}

}  // namespace

// The memory has the tasks in front, what stripes of them take, and the blocks that they share.
bool prefill(const Target& target, const Problem& problem) {
  LoweredCall lowered(problem);
  Call& c = lowered.call;
  if (c.heads == 0) return false;
  const Wanted wanted = wanted_tasks(c, target.packing_rows);
  std::size_t count = 0;
  std::int64_t max_queries = 0;
  cut_along_queries(c, target.panel_rows, wanted, [&](const QueryTask& task) {
    ++count;
    max_queries = std::max(max_queries, task.rows.queries);
  });
  if (count == 0) return false;
  const std::size_t slots = slots_for(count), max_tasks = count + max_shortened(wanted);
  const std::int64_t rows = max_queries * c.group(), floats = in_lines(target.prefill_floats(c, rows));
  if (target.transpose_mask) c.shared = plan_shared_mask(c, target.panel_rows, rows, slots);
  if (target.block_floats)
    c.kept = plan_shared_blocks(c, target.block_floats(c), static_cast<std::int64_t>(count), wanted.threads);
  const std::size_t task_floats = threads::floats_in_lines(max_tasks * sizeof(QueryTask)),
                    stripe_floats = c.shared.size() > 0 ? floats_for_stripes(slots, max_tasks) : 0;
  threads::Scratch scratch(
      slots, floats + in_lines((bytes_of(c.shared) + 3) / 4),
      (task_floats + stripe_floats) * sizeof(float) + static_cast<std::size_t>(bytes_of(c.kept)));
  float* const behind_tasks = scratch.front<float>() + task_floats;
  c.kept = placed(c.kept, behind_tasks + stripe_floats);
  QueryTask* const tasks = scratch.front<QueryTask>();
  QueryTask* end = tasks;
  cut_along_queries(c, target.panel_rows, wanted,
                    [&](const QueryTask& task) { std::construct_at(end++, task); });
  std::sort(tasks, end, RunsBefore{c.shared});
  const std::size_t cut = shorten_last({tasks, end}, c, target.panel_rows, wanted);
  if (stripe_floats > 0)
    run_in_stripes(target, c, {tasks, cut}, scratch, slots, floats, behind_tasks);
  else
    share_out_runs(static_cast<std::int64_t>(cut), products(c), [&](std::int64_t n) {
      const threads::Scratch::Lease lease(scratch);
      target.prefill(c, tasks[n].rows, lease.floats());
    });
  return lowered.needs_reference != 0;
}

Reason decode_refuses(const Target& target, const Problem& p) {
  const std::int64_t rows = p.kv_heads == 0 ? 0 : p.heads / p.kv_heads * p.queries;
  if (const std::int64_t at_most = max_rows_in_place(target, p); rows > at_most)
    return [rows, at_most] {
      return std::to_string(rows) + " rows share a KV head; it takes at most " + std::to_string(at_most);
    };
  if (p.outputs.scores.into) return [] { return std::string("scores were asked for"); };
  // Scores wait in the weights' own rows until the sum is known, which takes all their bits.
  if (p.outputs.weights && (p.outputs.weights->dtype != DType::f32 || target.only_bf16))
    return [&p] { return "weights were asked for in " + std::string(name_of(p.outputs.weights->dtype)); };
  if (p.outputs.weights && p.outputs.weights->stride.dim != 1)
    return [] { return std::string("weights were asked for that do not lie side by side"); };
  return prefill_refuses(target, p);
}

// Rows whose keys are one chunk are finished where they were computed, while what it left is in the cache.
bool decode(const Target& target, const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  if (c.heads == 0) return false;
  std::size_t count = 0;
  bool merges = false;
  cut_along_keys(c, [&](const KeyTask& task) {
    ++count;
    merges |= task.chunks != 1;
  });
  if (count == 0) return false;
  const std::int64_t own = target.decode_floats(c), left = target.partial(c).floats();
  const std::size_t task_floats = threads::floats_in_lines(count * sizeof(KeyTask)),
                    all_left = merges ? count * static_cast<std::size_t>(left) : 0;
  threads::Scratch scratch(slots_for(count), own + left, (task_floats + all_left) * sizeof(float));
  KeyTask* const tasks = scratch.front<KeyTask>();
  KeyTask* end = tasks;
  cut_along_keys(c, [&](const KeyTask& task) { std::construct_at(end++, task); });
  float* const partials = scratch.front<float>() + task_floats;  // one per task, where they are merged
  share_out_runs(end - tasks, products(c), [&](std::int64_t n) {
    const auto& [rows, chunk, chunks] = tasks[n];
    const threads::Scratch::Lease lease(scratch);
    float* partial = chunks == 1 ? lease.floats() + own : partials + n * left;
    target.decode(c, rows, chunk, lease.floats(), partial);
    if (chunks == 1) target.decode_finish(c, rows, 1, lease.floats(), partial);
  });
  if (!merges) return lowered.needs_reference != 0;
  share_out_runs(end - tasks, products(c) / chunk_keys, [&](std::int64_t n) {
    if (tasks[n].chunks < 2) return;
    const threads::Scratch::Lease lease(scratch);
    target.decode_finish(c, tasks[n].rows, tasks[n].chunks, lease.floats(), partials + n * left);
  });
  return lowered.needs_reference != 0;
}

}  // namespace heed::cpu
