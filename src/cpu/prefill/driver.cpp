// SPDX-License-Identifier: Apache-2.0
// Prefill: many rows. A task is a KV head and a stretch of queries. Tasks of one head may share what they
// pack of its keys and values; tasks of the same rows, the transposed mask.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>

#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"
#include "softmax/state.hpp"

namespace heed::cpu {

// The cut along the queries.

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

// A thread with t tasks packs for as long as t * packing_rows of its rows take, and waits for the last of all
// tasks about half of one. The sum is smallest where t is the root of rows / (2 * packing_rows). AMX with 16
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

QueryCut::QueryCut(const Call& call, int panel_rows, const Wanted& wanted)
    : c(call), panel_rows_(panel_rows), wanted_(wanted) {
  for_each_task([&](const QueryTask& task) {
    ++count_;
    max_rows_ = std::max(max_rows_, task.rows.queries * c.group());
  });
}

template <class Emit>
void QueryCut::for_each_task(const Emit& emit) const {
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const Sequence& s = c.sequences[b];
    const std::int64_t end = c.end_query(s), step = end <= c.first_query ? 1 : queries_per_task(s);
    for (std::int64_t first = c.first_query; first < end; first += step) {
      const std::int64_t queries = std::min(step, end - first);
      const std::int64_t keys = std::clamp<std::int64_t>(first + queries - 1 + s.end_offset, 0, s.key_count);
      for (std::int64_t h = 0; h < c.kv_heads; ++h) emit(QueryTask{queries * keys, {b, h, first, queries}});
    }
  }
}

std::int64_t QueryCut::queries_per_task(const Sequence& sequence) const {
  const std::int64_t heads = c.batch * c.kv_heads, rows = (c.end_query(sequence) - c.first_query) * c.group();
  std::int64_t parts = (rows + rows_per_task(c) - 1) / rows_per_task(c);
  if (heads * parts < wanted_.tasks)
    parts = std::min((wanted_.tasks + heads - 1) / heads, (rows + panel_rows_ - 1) / panel_rows_);
  const std::int64_t panels = (rows + panel_rows_ * parts - 1) / (panel_rows_ * parts);
  return std::max<std::int64_t>(1, panels * panel_rows_ / c.group());
}

// None where one thread does them all.
std::size_t QueryCut::last_tasks() const {
  return wanted_.threads == 1 ? 0 : static_cast<std::size_t>(wanted_.threads);
}

std::size_t QueryCut::capacity() const { return count_ + halvings * last_tasks(); }

std::span<QueryTask> QueryCut::write(std::span<QueryTask> room, const SharedMask& mask) const {
  QueryTask *const begin = room.data(), *end = begin;
  for_each_task([&](const QueryTask& task) { std::construct_at(end++, task); });
  std::sort(begin, end, RunsBefore{mask});
  return {begin, shorten_last(begin, end)};
}

QueryTask* QueryCut::shorten_last(QueryTask* begin, QueryTask* end) const {
  const std::size_t last = last_tasks();
  if (static_cast<std::size_t>(end - begin) < last) return end;
  for (int n = 0; n < halvings; ++n)
    for (QueryTask& task : std::span(end - last, last)) {
      const std::int64_t half = task.rows.queries * c.group() / 2 / panel_rows_ * panel_rows_ / c.group();
      if (half * c.group() < min_rows_of_half) continue;
      QueryTask back = task;
      back.rows.queries -= half, back.rows.first_query += half;
      task.rows.queries = half;  // fault: row-between-halves
      std::construct_at(end++, back);
    }
  return end;
}

// A mask that heads and batch entries share costs each of them a look at every element across its rows. Where
// that pays, it is transposed into the order in which a panel's scores lie, once for all tasks of the same
// rows. Such tasks, one for each KV head of the batch entries that share the mask, are a stripe. They follow
// each other on a thread while there are any, and find the transposed mask in the cache of this core.

Stripes::Stripes(std::span<const QueryTask> tasks, const SharedMask& mask, std::span<Stripe> room) {
  Stripe* end = room.data();
  for (std::size_t n = 0; n < tasks.size(); ++n) {
    const auto is_of_last = [&](const Rows& rows, const Rows& last) {
      return mask.owner(rows.batch_entry) == mask.owner(last.batch_entry) &&
             rows.first_query == last.first_query;
    };
    const bool goes_on = n > 0 && is_of_last(tasks[n].rows, tasks[n - 1].rows);
    if (goes_on)
      ++end[-1].end;
    else
      std::construct_at(end++, static_cast<std::int64_t>(n), tasks[n]);
  }
  stripes_ = {room.data(), end};
}

// The one with the most work, but short tasks last, so that threads end together.
std::int64_t Stripes::fullest() const {
  std::size_t best = 0;
  const auto is_behind = [&](const Stripe& a, const Stripe& z) {  // whether a thread had better take one of z
    if (a.remaining() <= 0 || z.remaining() <= 0) return a.remaining() <= 0;
    return a.queries != z.queries ? a.queries < z.queries : a.remaining() * a.cost < z.remaining() * z.cost;
  };
  for (std::size_t n = 1; n < stripes_.size(); ++n)
    if (is_behind(stripes_[best], stripes_[n])) best = n;
  return static_cast<std::int64_t>(best);
}

// Threads on different stripes begin with different KV heads: they would wait for the same keys.
std::int64_t Stripes::take(std::int64_t& mine) const {
  for (;; mine = fullest()) {
    if (mine == none) continue;
    Stripe& stripe = stripes_[static_cast<std::size_t>(mine)];
    const std::int64_t n = stripe.taken.fetch_add(1, std::memory_order_relaxed),
                       length = stripe.end - stripe.begin;
    const std::int64_t first = mine * length / static_cast<std::int64_t>(stripes_.size());
    if (n < length) return stripe.begin + (n + first) % length;  // fault: task-taken-twice
  }
}

namespace {

constexpr std::int64_t rows_in_word = 32;
constexpr std::int64_t keys_in_line = 64;  // of bytes: as many are transposed at a time
constexpr std::int64_t min_uses = 4;       // of a panel, which is read once and written once more
constexpr std::int64_t max_bytes = std::int64_t{64} << 20;

std::int64_t key_words(Type type) {
  if (type == Type::int8) return 1;
  if (type == Type::bf16) return rows_in_word / 2;
  return type == Type::f32 ? rows_in_word : 0;
}

// The only bias or mask of a call, if its scores need nothing else before it; else no data.
Tensor only_mask(const Call& c) {
  const bool is_first = !c.softcap && !c.alibi.of_heads;
  if (is_first && c.bias.data && c.mask_count == 0) return c.bias;
  if (is_first && !c.bias.data && c.mask_count == 1 && !c.masks[0].is_tree) return c.masks[0].where;
  return {};
}

// Whether the rows and keys of a batch entry are those of every other.
bool are_alike(const Call& c) {
  return std::all_of(c.sequences, c.sequences + c.batch, [&](const Sequence& s) {
    const Sequence& first = c.sequences[0];
    return s.queries == first.queries && s.keys == first.keys && s.first_query == first.first_query;
  });
}

std::int64_t bytes_of(const SharedMask& shared) {
  return shared.size() * static_cast<std::int64_t>(sizeof(std::uint32_t)) + shared.panels;
}

// The transposed mask of a task of `rows` rows, one for every slot, without memory yet; empty where the mask
// is read as it lies.
SharedMask plan_shared_mask(const Call& c, int panel_rows, std::int64_t rows, std::size_t slots) {
  const Tensor mask = only_mask(c);
  const bool lies_in_rows =
      mask.data && mask.stride.dim == 1 && mask.stride.length != 0 && mask.stride.heads == 0;
  if (!lies_in_rows || panel_rows != rows_in_word || rows_in_word % c.group() != 0) return {};
  SharedMask shared;
  shared.panels = (rows + panel_rows - 1) / panel_rows;
  shared.keys = (c.keys + keys_in_line - 1) / keys_in_line * keys_in_line;
  shared.key_words = key_words(mask.type);
  // fault: mask-of-the-first-entry, mask-of-the-first-sequence
  shared.is_of_batch = mask.stride.batch == 0 && are_alike(c);
  const std::int64_t uses = c.kv_heads * (shared.is_of_batch ? c.batch : 1);
  const bool pays = uses >= min_uses && shared.size() > 0;
  return pays && bytes_of(shared) * static_cast<std::int64_t>(slots) <= max_bytes ? shared : SharedMask{};
}

// What a slot has of a shared mask, on a line of its own: the stripe it takes tasks from, and the panels that
// lie transposed in its memory, [begin, end) of a batch entry, or of all that share them.
struct alignas(64) MaskOfSlot {
  std::int64_t stripe = Stripes::none;
  std::int64_t owner = -1, begin = 0, end = 0;
};

// The call with the mask of a task's rows in the memory of a slot. It is transposed there unless the slot has
// it.
Call with_mask_of(const Rows& rows, const Call& c, const Target& target, MaskOfSlot& slot, void* memory) {
  const auto panels_to = [&](std::int64_t query) {
    return ((query - c.first_query) * c.group() + rows_in_word - 1) / rows_in_word;
  };
  const std::int64_t begin = panels_to(rows.first_query), end = panels_to(rows.first_query + rows.queries);
  const std::int64_t owner = c.shared.owner(rows.batch_entry);
  // fault: mask-of-the-rows-before
  const bool has_it = slot.owner == owner && slot.begin <= begin && end <= slot.end;
  if (!has_it) slot.owner = owner, slot.begin = begin, slot.end = end;
  Call with = c;
  with.shared.words = static_cast<std::uint32_t*>(memory);
  with.shared.is_transposed = reinterpret_cast<unsigned char*>(with.shared.words + with.shared.size());
  with.shared.first_panel = slot.begin;
  for (std::int64_t panel = begin; !has_it && panel < end; ++panel)
    target.transpose_mask(with, rows.batch_entry, panel);
  return with;
}

// Blocks of keys and values that tasks share.

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
  return lowered.needs_repair != 0;
}

}  // namespace heed::cpu
