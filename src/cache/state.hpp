// SPDX-License-Identifier: Apache-2.0
// What a cache is made of: who is at it right now, the pool of pages, and for every sequence the table of
// its pages.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "cache/layout.hpp"
#include "cache/pool.hpp"
#include "heed/cache.hpp"

namespace heed::cache {

class CacheUse {
 public:
  void begin_reading(const char* call);  // `call` begins the sentence of a refusal
  void read_on() noexcept { now_.fetch_add(1, std::memory_order_relaxed); }  // once more, for a reader
  void end_reading() noexcept;
  void begin_writing(const char* call);
  void end_writing() noexcept { now_.store(0, std::memory_order_release); }

  // Without letting go in between, so that no other writer comes first.
  void writer_becomes_reader() noexcept { now_.store(1, std::memory_order_release); }
  // For one who was the writer: lets no more readers in, and waits until the others have left. Others are
  // not writers waiting for this one, since only one reader at a time was a writer.
  void reader_becomes_writer() noexcept;

 private:
  static constexpr std::uint32_t a_writer = std::uint32_t{1} << 31;  // is here, or waits to be alone
  std::atomic<std::uint32_t> now_{0};                                // readers, and a_writer
};

class Reading {
 public:
  Reading(CacheUse& use, const char* call) : use_(use) { use.begin_reading(call); }
  ~Reading() { use_.end_reading(); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  CacheUse& use_;
};

class Writing {
 public:
  Writing(CacheUse& use, const char* call) : use_(use) { use.begin_writing(call); }
  ~Writing() { use_.end_writing(); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  CacheUse& use_;
};

// What a cache is made of: the pool of pages, and for every sequence the table of its pages.

struct CachedSequence {
  // One entry per page of tokens; those of [front pages, held_from) are the page of zeros.
  std::vector<const unsigned char*> table{};
  std::int64_t length = 0;
  std::int64_t held_from = 0;
  bool is_released = false;
  bool copies_last_page = false;  // what an append has found out and not yet done
};

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
  PagePool pool;
  std::vector<CachedSequence> sequences{};
  std::int64_t released = 0;  // numbers that wait for a fork or add
  mutable CacheUse use{};

  explicit State(const CacheGeometry&);  // has no sequences yet

  const CachedSequence& at(std::int64_t number) const;  // refuses numbers that are not in use
  CachedSequence& at(std::int64_t number) {
    return const_cast<CachedSequence&>(std::as_const(*this).at(number));
  }

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
