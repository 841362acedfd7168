// SPDX-License-Identifier: Apache-2.0
// Prefill: many rows. A task is a KV head and a stretch of queries. Tasks of one head may share what they
// pack of its keys and values; tasks of the same rows, the transposed mask (cpu/schedule/tasks.hpp).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>

#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"
#include "softmax/state.hpp"

namespace heed::cpu {
namespace {

// Of all KV heads. With 16 threads of a Xeon 8 of 4096 x 128 in f32, 32 MiB, take 5 to 11 % less time than
// where every task packs for itself, 8 of 2048 x 128 2 to 8, 12 of 1024 x 64 2 to 7 (November 2026).
constexpr std::int64_t max_shared_bytes = std::int64_t{48} << 20;
// Tasks for each thread, at least. Those that begin at once wait for what one of them packs, and only later
// ones find it done.
constexpr std::int64_t min_rounds = 2;

// The blocks of a call whose tasks pack keys and values for each other, without memory yet; none where every
// task packs for itself.
SharedBlocks plan_shared_blocks(const Call& c, std::int64_t block_floats, std::int64_t tasks,
                                std::int64_t threads) {
  constexpr std::int64_t max_floats = max_shared_bytes / static_cast<std::int64_t>(sizeof(float));
  const std::int64_t heads = c.batch * c.kv_heads, of_head = (c.keys - 1) / block_keys + 1,
                     max_blocks = max_floats / block_floats;
  const bool is_shared = tasks > heads && tasks >= min_rounds * threads;
  return is_shared && of_head <= max_blocks / heads ? SharedBlocks{nullptr, heads, of_head, block_floats}
                                                    : SharedBlocks{};
}

std::size_t floats_of(const SharedBlocks& blocks) {
  return static_cast<std::size_t>(blocks.heads * blocks.of_head * blocks.floats);
}

// The same in memory: nobody has packed any of them.
SharedBlocks placed(SharedBlocks blocks, std::span<float> memory) {
  if (blocks.heads == 0) return blocks;
  blocks.memory = memory.data();
  for (std::int64_t head = 0; head < blocks.heads; ++head)
    for (std::int64_t n = 0; n < blocks.of_head; ++n)
      std::memset(blocks.block(head, n), 0, shared_header_floats * sizeof(float));
  return blocks;
}

// The memory of a call's tasks.
struct Regions {
  Layout layout{};
  Layout::Shared<QueryTask> tasks;
  Layout::Shared<float> blocks;
  Layout::Shared<MaskOfSlot> masks;  // none where no mask is shared
  Layout::Shared<Stripes::Stripe> stripes;
  Layout::OfSlot<float> scratch;
  Layout::OfSlot<std::byte> mask;

  Regions(const Target& target, const Call& c, const QueryCut& cut, std::size_t slots)
      : tasks(layout.share<QueryTask>(cut.capacity())),
        blocks(layout.share<float>(floats_of(c.blocks))),
        masks(layout.share<MaskOfSlot>(shares_mask(c) ? slots : 0)),
        stripes(layout.share<Stripes::Stripe>(shares_mask(c) ? cut.capacity() : 0)),
        scratch(layout.give_each_slot<float>(target.prefill_floats(c, cut.max_rows()))),
        mask(layout.give_each_slot<std::byte>(bytes_of(c.shared))) {}

  static bool shares_mask(const Call& c) { return c.shared.size() > 0; }
};

void run_in_stripes(const Target& target, const Call& c, std::span<const QueryTask> tasks, TaskMemory& memory,
                    const Regions& at) {
  const std::span<MaskOfSlot> masks = memory[at.masks];
  std::uninitialized_value_construct_n(masks.data(), masks.size());
  const Stripes stripes(tasks, c.shared, memory[at.stripes]);
  share_out(std::ssize(tasks), products(c), [&](std::int64_t) {
    const TaskMemory::Slot slot(memory);
    MaskOfSlot& mask = masks[slot.number()];
    const Rows& task = tasks[static_cast<std::size_t>(stripes.take(mask.stripe))].rows;
    const Call with = with_mask_of(task, c, target, mask, slot[at.mask]);
    target.prefill(with, task, slot[at.scratch]);
  });
}

}  // namespace

bool prefill(const Target& target, const Problem& problem) {
  LoweredCall lowered(problem);
  Call& c = lowered.call;
  if (c.heads == 0) return false;
  const Wanted wanted = wanted_tasks(c, target.packing_rows);
  const QueryCut cut(c, target.panel_rows, wanted);
  if (cut.count() == 0) return false;
  const std::size_t slots = slots_for(cut.count());
  if (target.transpose_mask) c.shared = plan_shared_mask(c, target.panel_rows, cut.max_rows(), slots);
  if (target.block_floats)
    c.blocks =
        plan_shared_blocks(c, target.block_floats(c), static_cast<std::int64_t>(cut.count()), wanted.threads);
  const Regions at(target, c, cut, slots);
  TaskMemory memory(slots, at.layout);
  c.blocks = placed(c.blocks, memory[at.blocks]);
  const std::span<const QueryTask> tasks = cut.write(memory[at.tasks], c.shared);
  if (Regions::shares_mask(c))
    run_in_stripes(target, c, tasks, memory, at);
  else
    share_out_runs(std::ssize(tasks), products(c), [&](std::int64_t n) {
      const TaskMemory::Slot slot(memory);
      target.prefill(c, tasks[static_cast<std::size_t>(n)].rows, slot[at.scratch]);
    });
  return lowered.needs_reference != 0;
}

}  // namespace heed::cpu
