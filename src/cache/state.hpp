// SPDX-License-Identifier: Apache-2.0
// What a cache is made of: the pool of pages, the sequences with the tables of their pages, and the one lock.
//
// Threads. A call holds the sequences that it reads or changes from its beginning to its end: any number of
// readers, or one who changes. A call that cannot have one of its sequences is refused, so calls on different
// sequences meet in nothing but the lock, and no call waits for a sequence.
//   State::lock   guards the counts of the pool, which sequences there are, and every field of a sequence. It
//                 is held for as long as a table takes to go through, never while tokens are moved. There is
//                 no other lock, and under it none is taken.
//   A sequence    that a call holds keeps its fields: its holder reads them without the lock. One who changes
//                 it writes them without, all but the length, which is everybody's to ask for.
//   A page        is written only by who changes its sequence, and only if no other table lists it. Who
//   copies
//                 a shared page counts as a user no longer and may still be at it: it says so in the pool,
//                 and who is about to write to a page waits for its copies.
// Two waits: for those copies, which are all of calls that took their pages earlier, so that no two calls
// wait for each other; and, when a layer has failed, for the readers of the tokens that it takes back, who
// wait for nothing.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "cache/layout.hpp"
#include "cache/pool.hpp"
#include "cache/sequences.hpp"
#include "heed/cache.hpp"

namespace heed::cache {

// A complete configuration and what follows from it.
struct CacheGeometry {
  KvCacheConfig config;
  PageLayout layout;

  explicit CacheGeometry(const KvCacheConfig& complete_config);

  std::int64_t pages_of(std::int64_t tokens) const {
    return (tokens + layout.page_size - 1) / layout.page_size;
  }
  // Pages that hold a front token; the window never releases them.
  std::int64_t front_pages() const { return config.window ? pages_of(config.window->front) : 0; }
};

struct State : CacheGeometry {
  mutable std::mutex lock{};
  mutable std::condition_variable has_left{};  // a reader of a sequence, or who copied from a page
  PagePool pool;
  SequenceList sequences{};
  std::int64_t released = 0;  // numbers that wait for a fork or add

  explicit State(const CacheGeometry&);  // has no sequences yet

  // All of these under the lock.

  const CachedSequence& at(std::int64_t number) const;  // refuses numbers that are not in use
  CachedSequence& at(std::int64_t number) {
    return const_cast<CachedSequence&>(std::as_const(*this).at(number));
  }
  // Refuses if somebody changes the sequence, or reads it; `call` begins the sentence.
  void check_not_changed(const char* call, std::int64_t number) const;
  void check_alone(const char* call, std::int64_t number) const;

  // Refuses a length that the sequence does not have, or cannot go back to because of its window.
  void check_prefix(std::int64_t number, std::int64_t length) const;

  // Makes an empty sequence with the lowest free number and room for this many pages; returns the number.
  std::int64_t add_sequence(std::int64_t pages);

  void share_pages(CachedSequence&) noexcept;            // counts a user more for each page of the table
  void shorten(CachedSequence&, std::int64_t) noexcept;  // to a length that check_prefix let pass
};

// The way in, past the calls of the API.
struct Access {
  static State& state(KvCache& cache) { return *cache.state_; }
  static const State& state(const KvCache& cache) { return *cache.state_; }
};

// Every default filled in; refuses what makes no cache.
KvCacheConfig complete(const KvCacheConfig&);

}  // namespace heed::cache
