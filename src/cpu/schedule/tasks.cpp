// SPDX-License-Identifier: Apache-2.0
#include "cpu/schedule/tasks.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <thread>

namespace heed::cpu {
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

}  // namespace

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

std::int64_t bytes_of(const SharedMask& shared) {
  return shared.size() * static_cast<std::int64_t>(sizeof(std::uint32_t)) + shared.panels;
}

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

// The memory of tasks.

namespace {

// The slot that this thread had last is tried first: the others have theirs, and what a task left there is in
// this core's cache.
constinit thread_local std::size_t last_slot = 0;

}  // namespace

Scratch::Scratch(std::size_t slots, std::int64_t floats_per_slot, std::size_t front_bytes)
    : slots_(slots),
      stride_(floats_in_lines(static_cast<std::size_t>(floats_per_slot) * sizeof(float)) + line_floats),
      memory_(threads::take_memory(floats_in_lines(front_bytes) + slots_ * stride_)),
      slots_begin_(memory_.get() + floats_in_lines(front_bytes)) {
  for (std::size_t slot = 0; slot < slots_; ++slot) new (&taken(slot)) std::atomic<bool>(false);
}

std::size_t Scratch::take() {
  for (;;) {
    for (std::size_t n = 0; n < slots_; ++n) {
      const std::size_t slot = (last_slot + n) % slots_;
      if (!taken(slot).exchange(true, std::memory_order_acquire)) return last_slot = slot;
    }
    std::this_thread::yield();  // a foreign executor may run more tasks at once than it said
  }
}

}  // namespace heed::cpu
