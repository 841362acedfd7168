// SPDX-License-Identifier: Apache-2.0
// Who is at a cache right now: any number of readers, or one writer. Nobody waits; who comes at the wrong
// time is refused.
#pragma once
#include <atomic>
#include <cstdint>

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

}  // namespace heed::cache
