// SPDX-License-Identifier: Apache-2.0
// Sequences come, go, grow shorter and share pages.
#include "cache/state.hpp"

#include <algorithm>

#include "cache/reading.hpp"
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

// Sequences come, go, grow shorter and share pages.

State::State(const CacheGeometry& geometry)
    : CacheGeometry(geometry),
      pool({.pages = *config.pages,
            .page_bytes = layout.page_bytes(),
            .zero_bytes = config.window ? layout.page_bytes() : 0,
            .device = config.device}) {}

const CachedSequence& State::at(std::int64_t number) const {
  const auto count = static_cast<std::int64_t>(sequences.size());
  if (number < 0 || number >= count)
    throw refusal(Error::value, "sequence: ", number, " is not in [0, ", count, ")");
  const CachedSequence& sequence = sequences[static_cast<std::size_t>(number)];
  if (sequence.is_released) throw refusal(Error::value, "sequence: ", number, " is released");
  return sequence;
}

// The last token of the prefix sees the window's length of tokens; all of those must still be there, or else
// nothing of the prefix may have been released.
void State::check_prefix(std::int64_t number, std::int64_t length) const {
  const CachedSequence& sequence = at(number);
  if (length < 0 || length > sequence.length)
    throw refusal(Error::value, "length: ", length, " is not in [0, ", sequence.length,
                  "], the tokens of sequence ", number);
  if (length <= front_pages() * layout.page_size || sequence.held_from == front_pages()) return;
  const std::int64_t held_from = sequence.held_from * layout.page_size;
  if (length - config.window->length < held_from)
    throw refusal(Error::value, "length: ", length, " of sequence ", number,
                  " needs its window's tokens from ",
                  std::max<std::int64_t>(length - config.window->length, 0), " on, and those before ",
                  held_from, " are released");
}

std::int64_t State::add_sequence(std::int64_t pages) {
  const auto is_free = [](const CachedSequence& sequence) { return sequence.is_released; };
  auto place = released == 0 ? sequences.end() : std::find_if(sequences.begin(), sequences.end(), is_free);
  if (place == sequences.end()) {
    CachedSequence sequence;
    sequence.table.reserve(static_cast<std::size_t>(pages));
    sequences.push_back(std::move(sequence));
    place = sequences.end() - 1;
  } else {
    place->table.reserve(static_cast<std::size_t>(pages));
    place->is_released = false;
    --released;
  }
  place->held_from = front_pages();
  return place - sequences.begin();
}

void State::share_pages(CachedSequence& sequence) noexcept {
  for (const unsigned char* page : sequence.table)
    if (page != pool.zeros()) pool.share(page);
}

void State::shorten(CachedSequence& sequence, std::int64_t length) noexcept {
  const auto pages = static_cast<std::size_t>(pages_of(length));
  for (std::size_t i = sequence.table.size(); i-- > pages;)
    if (sequence.table[i] != pool.zeros()) pool.drop(sequence.table[i]);
  sequence.table.resize(pages);
  sequence.length = length;
  if (length <= front_pages() * layout.page_size) sequence.held_from = front_pages();
}

CacheReading::CacheReading(const KvCache& cache) : state_(Access::state(cache)), layout_(state_.layout) {
  state_.use.begin_reading("attention");
}

CacheReading::CacheReading(const CacheReading& other) noexcept
    : state_(other.state_), layout_(other.layout_) {
  state_.use.read_on();
}

CacheReading::~CacheReading() { state_.use.end_reading(); }

std::int64_t CacheReading::sequences() const { return std::ssize(state_.sequences); }

PagedSequence CacheReading::sequence(std::int64_t n) const {
  const CachedSequence& sequence = state_.at(n);
  return {sequence.table.data(), sequence.length};
}

}  // namespace heed::cache
