// SPDX-License-Identifier: Apache-2.0
#include "cache/use.hpp"

#include "refusal/refusal.hpp"

namespace heed::cache {

void CacheUse::begin_reading(const char* call) {
  std::uint32_t now = now_.load(std::memory_order_relaxed);
  do {
    if (now & a_writer) throw refusal(Error::busy, call, ": the cache is being changed by another call");
  } while (!now_.compare_exchange_weak(now, now + 1, std::memory_order_acquire, std::memory_order_relaxed));
}

void CacheUse::end_reading() noexcept {
  if (now_.fetch_sub(1, std::memory_order_release) == a_writer + 1) now_.notify_one();
}

void CacheUse::begin_writing(const char* call) {
  std::uint32_t now = 0;
  if (now_.compare_exchange_strong(now, a_writer, std::memory_order_acquire, std::memory_order_relaxed))
    return;
  throw refusal(Error::busy, call, ": the cache is being ", now & a_writer ? "changed" : "read",
                " by another call");
}

void CacheUse::reader_becomes_writer() noexcept {
  now_.fetch_add(a_writer - 1, std::memory_order_relaxed);
  for (std::uint32_t now; (now = now_.load(std::memory_order_acquire)) != a_writer;)
    now_.wait(now, std::memory_order_relaxed);
}

}  // namespace heed::cache
