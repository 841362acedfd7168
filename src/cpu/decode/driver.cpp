// SPDX-License-Identifier: Apache-2.0
// Decode: few rows over many keys. A task is a KV head and a chunk of keys; the states of the chunks are
// merged in order when all are done.
#include <algorithm>
#include <span>

#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {

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
