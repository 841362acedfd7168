// SPDX-License-Identifier: Apache-2.0
// How a call is cut into tasks that run apart. They are told to an `emit` one by one, so that they can be
// counted before there is memory for them.
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

// Asks how many threads there are, which may change meanwhile: a call asks once. To pack a task's keys and
// values takes as long as `packing_rows` of its rows.
Wanted wanted_tasks(const Call&, double packing_rows);

// How many queries of a sequence make a task: whole panels in every task but the last, whatever the group.
std::int64_t queries_per_task(const Call&, const Sequence&, int panel_rows, const Wanted&);

// A stretch of queries of a sequence that read one KV head.
struct QueryTask {
  std::int64_t cost;
  Rows rows;
};

template <class Emit>
void cut_along_queries(const Call& c, int panel_rows, const Wanted& wanted, const Emit& emit) {
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const Sequence& s = c.sequences[b];
    const std::int64_t end = c.end_query(s),
                       step = end <= c.first_query ? 1 : queries_per_task(c, s, panel_rows, wanted);
    for (std::int64_t first = c.first_query; first < end; first += step) {
      const std::int64_t queries = std::min(step, end - first);
      const std::int64_t keys = std::clamp<std::int64_t>(first + queries - 1 + s.end_offset, 0, s.key_count);
      for (std::int64_t h = 0; h < c.kv_heads; ++h) emit(QueryTask{queries * keys, {b, h, first, queries}});
    }
  }
}

// Whether a runs before z: longest tasks first, since the last queries of a causal problem see the most keys.
// Of others those of a batch entry follow each other, or, where entries share a mask, those of its rows.
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

// Threads wait at the end for the tasks that were begun last. So of sorted tasks these are halved, one for
// each thread, and then the last ones again; they pack the same keys more often, unless tasks share what they
// pack. Writes what becomes of them behind the others, where there must be room for max_shortened() more,
// and returns how many tasks there are.
std::size_t shorten_last(std::span<QueryTask>, const Call&, int panel_rows, const Wanted&);
std::size_t max_shortened(const Wanted&);

// A chunk of keys for all rows of a sequence that read one KV head.
struct KeyTask {
  Rows rows;
  std::int64_t chunk;
  std::int64_t chunks = 0;  // that these rows have, where this is the first of them
};

// The chunks of keys that some row of a sequence may see: those of the front, then those of the band; at
// least one, which then says that nothing was seen.
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

template <class Emit>
void cut_along_keys(const Call& c, const Emit& emit) {
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const Sequence& s = c.sequences[b];
    if (s.queries == 0) continue;
    const SeenChunks chunks(c, s);
    for (std::int64_t h = 0; h < c.kv_heads; ++h)
      for (std::int64_t n = 0; n < chunks.count(); ++n)
        emit(KeyTask{{b, h, 0, s.queries}, chunks[n], n == 0 ? chunks.count() : 0});
  }
}

}  // namespace heed::cpu
