// SPDX-License-Identifier: Apache-2.0
// How a call is cut into tasks that run apart: prefill along the queries, decode along the keys.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/call.hpp"

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

}  // namespace heed::cpu
