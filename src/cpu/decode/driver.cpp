// SPDX-License-Identifier: Apache-2.0
// Decode: few rows over many keys. A task is a KV head and a chunk of keys; the states of the chunks are
// merged in order when all are done.
#include <cstdint>
#include <memory>
#include <span>

#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

// A chunk of keys for all rows of a sequence that read one KV head.
struct KeyTask {
  Rows rows;
  std::int64_t chunk;
  std::int64_t chunks = 0;  // of these rows, where this is the first of them
};

// A call cut along the keys: a task is a KV head and a chunk of keys that its rows see.
class KeyCut {
 public:
  explicit KeyCut(const Call&);

  std::size_t count() const { return count_; }
  bool merges() const { return merges_; }  // whether some rows have several chunks

  void write(std::span<KeyTask>) const;

 private:
  const Call& c;
  std::size_t count_ = 0;
  bool merges_ = false;
};

KeyCut::KeyCut(const Call& call) : c(call) {
  for (std::int64_t b = 0; b < c.batch; ++b) {
    if (c.sequences[b].queries == 0) continue;
    const std::int64_t chunks = SeenChunks(c, c.sequences[b]).count();
    count_ += static_cast<std::size_t>(c.kv_heads * chunks);
    merges_ |= chunks > 1;
  }
}

void KeyCut::write(std::span<KeyTask> room) const {
  KeyTask* end = room.data();
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const Sequence& s = c.sequences[b];
    if (s.queries == 0) continue;
    const SeenChunks chunks(c, s);
    for (std::int64_t h = 0; h < c.kv_heads; ++h)
      for (std::int64_t n = 0; n < chunks.count(); ++n)
        std::construct_at(end++, KeyTask{{b, h, 0, s.queries}, chunks[n], n == 0 ? chunks.count() : 0});
  }
}

}  // namespace

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
  if (!cut.merges()) return lowered.needs_repair != 0;
  share_out_runs(std::ssize(tasks), products(c) / chunk_keys, [&](std::int64_t n) {
    const KeyTask& first = tasks[static_cast<std::size_t>(n)];
    if (first.chunks < 2) return;
    const TaskMemory::Slot slot(memory);
    target.decode_finish(c, first.rows, first.chunks, slot[scratch], states + n * state_floats);
  });
  return lowered.needs_repair != 0;
}

}  // namespace heed::cpu
