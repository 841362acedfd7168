// SPDX-License-Identifier: Apache-2.0
// Decode: few rows over many keys. A task is a KV head and a chunk of keys; the states of the chunks are
// merged in order when all are done.
#include <algorithm>
#include <span>

#include "cpu/drivers.hpp"
#include "cpu/schedule/cut.hpp"
#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

// Rows that share a KV head, up to which its keys are better read where they lie than packed. Prefill can
// leave out keys that masks hide from a panel, and spread one head's rows over threads.
std::int64_t max_rows_in_place(const Target& target, const Problem& p) {
  const bool is_f32 = p.inputs.q.dtype == DType::f32 && p.kv_type == Type::f32;
  const bool sees_all = p.options.masks.empty();
  const bool is_shared_by_heads = p.batch * p.kv_heads >= static_cast<std::int64_t>(threads::concurrency());
  return is_f32 && p.keys <= block_keys && sees_all && is_shared_by_heads ? target.max_short_rows
                                                                          : max_decode_rows;
}

}  // namespace

Reason decode_refuses(const Target& target, const Problem& p) {
  if (p.inputs.q.dtype == DType::f64) return prefill_refuses(target, p);
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

// Rows whose keys are one chunk are finished where they were computed, while its state is in the cache.
bool decode(const Target& target, const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  if (c.heads == 0) return false;
  const KeyCut cut(c);
  if (cut.count() == 0) return false;
  const std::int64_t state_floats = target.partial(c).floats();
  Layout layout;
  const auto task_region = layout.share<KeyTask>(cut.count());
  const auto state_region =  // one for each task, where they are merged
      layout.share<float>(cut.merges() ? cut.count() * static_cast<std::size_t>(state_floats) : 0);
  const auto scratch = layout.give_each_slot<float>(target.decode_floats(c));
  const auto only_state = layout.give_each_slot<float>(state_floats);
  TaskMemory memory(slots_for(cut.count()), layout);
  const std::span<KeyTask> tasks = memory[task_region];
  float* const states = memory[state_region].data();
  cut.write(tasks);
  share_out_runs(std::ssize(tasks), products(c), [&](std::int64_t n) {
    const auto& [rows, chunk, chunks] = tasks[static_cast<std::size_t>(n)];
    const TaskMemory::Slot slot(memory);
    float* const state = chunks == 1 ? slot[only_state] : states + n * state_floats;
    target.decode(c, rows, chunk, slot[scratch], state);
    if (chunks == 1) target.decode_finish(c, rows, 1, slot[scratch], state);
  });
  if (!cut.merges()) return lowered.needs_reference != 0;
  share_out_runs(std::ssize(tasks), products(c) / chunk_keys, [&](std::int64_t n) {
    const KeyTask& first = tasks[static_cast<std::size_t>(n)];
    if (first.chunks < 2) return;
    const TaskMemory::Slot slot(memory);
    target.decode_finish(c, first.rows, first.chunks, slot[scratch], states + n * state_floats);
  });
  return lowered.needs_reference != 0;
}

}  // namespace heed::cpu
