// SPDX-License-Identifier: Apache-2.0
// How a call is cut into tasks that run apart: prefill along the queries, decode along the keys.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/call.hpp"
#include "cpu/isa/target.hpp"

namespace heed::cpu {

// How many tasks a call should make at least, and how many threads run them.
struct Wanted {
  std::int64_t tasks, threads;
};

// Asks how many threads there are, which may change meanwhile: a call asks once. Packing a task's keys and
// values takes as long as `packing_rows` of its rows.
Wanted wanted_tasks(const Call&, double packing_rows);

// A stretch of queries of a sequence that read one KV head.
struct QueryTask {
  std::int64_t cost;
  Rows rows;
};

// Whether a runs before z. The longest tasks run first, since the last queries of a causal problem see the
// most keys. Among equals, tasks of one batch entry follow each other, or, where entries share a mask, tasks
// of the same rows of the mask.
struct RunsBefore {
  const SharedMask& mask;

  constexpr bool operator()(const QueryTask& a, const QueryTask& z) const {
    if (a.cost != z.cost) return a.cost > z.cost;
    if (const auto x = mask.owner(a.rows.batch_entry), y = mask.owner(z.rows.batch_entry); x != y)
      return x < y;
    if (a.rows.first_query != z.rows.first_query) return a.rows.first_query < z.rows.first_query;
    if (a.rows.batch_entry != z.rows.batch_entry) return a.rows.batch_entry < z.rows.batch_entry;
    return a.rows.kv_head < z.rows.kv_head;
  }
};

// A call cut along the queries: a task is a KV head and a stretch of queries.
class QueryCut {
 public:
  // Tasks have whole panels, but for the last of a sequence, whatever the group.
  QueryCut(const Call&, int panel_rows, const Wanted&);

  std::size_t count() const { return count_; }         // before the last are shortened
  std::int64_t max_rows() const { return max_rows_; }  // of a task
  std::size_t capacity() const;                        // tasks that write() may need room for

  // The tasks, in the order in which they should run; returns those that were written.
  //
  // Threads wait at the end for the tasks that began last. So the last tasks, one for each thread, are
  // halved, and the last of what this makes once more. They pack the same keys more often, unless tasks share
  // what they pack.
  std::span<QueryTask> write(std::span<QueryTask> room, const SharedMask&) const;

 private:
  template <class Emit>
  void for_each_task(const Emit&) const;
  std::int64_t queries_per_task(const Sequence&) const;
  std::size_t last_tasks() const;
  QueryTask* shorten_last(QueryTask* begin, QueryTask* end) const;

  const Call& c;
  const int panel_rows_;
  const Wanted wanted_;
  std::size_t count_ = 0;
  std::int64_t max_rows_ = 0;
};

// A chunk of keys for all rows of a sequence that read one KV head.
struct KeyTask {
  Rows rows;
  std::int64_t chunk;
  std::int64_t chunks = 0;  // of these rows, where this is the first of them
};

// The chunks of keys that some row of a sequence may see: those of the front, then those of the band; at
// least one, whose state then says that nothing was seen.
class SeenChunks {
 public:
  SeenChunks(const Call& c, const Sequence& s) {
    const std::int64_t end = std::clamp<std::int64_t>(s.queries - 1 + s.end_offset, 0, s.key_count);
    const std::int64_t band = std::clamp<std::int64_t>(s.first_offset, 0, s.key_count) / chunk_keys;
    in_front_ = in_chunks(std::min(c.front, end));
    first_ = std::max(band, in_front_);
    count_ = std::max<std::int64_t>(1, in_front_ + std::max<std::int64_t>(0, in_chunks(end) - first_));
    if (in_front_ == 0 && first_ >= in_chunks(end)) first_ = 0;
  }
  std::int64_t count() const { return count_; }
  std::int64_t operator[](std::int64_t n) const {
    return (n < in_front_ ? n : first_ + n - in_front_) * chunk_keys;
  }

 private:
  static std::int64_t in_chunks(std::int64_t keys) { return (keys + chunk_keys - 1) / chunk_keys; }
  std::int64_t in_front_, first_, count_;
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

// A mask that heads and batch entries share costs each of them a look at every element across its rows. Where
// that pays, it is transposed into the order in which a panel's scores lie, once for all tasks of the same
// rows. Such tasks, one for each KV head of the batch entries that share the mask, are a stripe. They follow
// each other on a thread while there are any, and find the transposed mask in the cache of this core.

// The transposed mask of a task of `rows` rows, one for every slot, without memory yet; empty where the mask
// is read as it lies.
SharedMask plan_shared_mask(const Call&, int panel_rows, std::int64_t rows, std::size_t slots);
std::int64_t bytes_of(const SharedMask&);

class Stripes {
 public:
  struct Stripe {
    std::int64_t begin = 0, end = 0;     // of its tasks
    std::int64_t queries = 0, cost = 0;  // of the first of them
    std::atomic<std::int64_t> taken = 0;

    Stripe() = default;
    Stripe(std::int64_t first, const QueryTask& task)
        : begin(first), end(first + 1), queries(task.rows.queries), cost(task.cost) {}
    std::int64_t remaining() const { return end - begin - taken.load(std::memory_order_relaxed); }
  };
  static constexpr std::int64_t none = -1;

  // Of tasks in the order in which they should run, those of a stripe side by side; `room` is for as many
  // stripes as there are tasks.
  Stripes(std::span<const QueryTask> tasks, const SharedMask&, std::span<Stripe> room);

  // The number of a task that nobody has; there must be one. It is of stripe `mine`, the one that was taken
  // from last, while that has any; otherwise `mine` becomes another.
  std::int64_t take(std::int64_t& mine) const;

 private:
  std::int64_t fullest() const;

  std::span<Stripe> stripes_;
};

// What a slot has of a shared mask, on a line of its own: the stripe it takes tasks from, and the panels that
// lie transposed in its memory, [begin, end) of a batch entry, or of all that share them.
struct alignas(64) MaskOfSlot {
  std::int64_t stripe = Stripes::none;
  std::int64_t owner = -1, begin = 0, end = 0;
};

// The call with the mask of a task's rows in the memory of a slot. It is transposed there unless the slot has
// it.
Call with_mask_of(const Rows&, const Call&, const Target&, MaskOfSlot&, void* memory);

}  // namespace heed::cpu
