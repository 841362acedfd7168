// SPDX-License-Identifier: Apache-2.0
// Appending: everything that can fail happens first, then pages change hands and tokens are written.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cache/new_keys.hpp"
#include "refusal/refusal.hpp"

namespace heed::cache {
namespace {

// Pages [held_from, this one) are what the window lets go of before an append. The tokens to come see keys
// from length - window.length + 1 on; one more is kept, which the last token of before sees, so that the
// append can be rolled back.
std::int64_t end_of_unseen_pages(const State& state, const CachedSequence& sequence) {
  if (!state.config.window) return sequence.held_from;
  const std::int64_t unseen = std::max<std::int64_t>(sequence.length - state.config.window->length, 0);
  return std::max(sequence.held_from, unseen / state.layout.page_size);
}

// Counts the pages of an append before it happens: the unseen ones are given back and shared last pages lose
// a user, and both are undone unless the append is kept.
class Claim {
 public:
  Claim(State& state, const NewTokens& tokens)
      : state_(state), tokens_(tokens), returned_before_(state.pool.returned()) {
    std::int64_t needed = 0, added = 0;
    for_each([&](CachedSequence& sequence, std::int64_t count) {
      for (std::int64_t i = sequence.held_from; i < end_of_unseen_pages(state_, sequence); ++i)
        state_.pool.drop(sequence.table[static_cast<std::size_t>(i)]);
      const bool writes_last_page = sequence.length % state_.layout.page_size != 0;
      sequence.copies_last_page = writes_last_page && state_.pool.users(sequence.table.back()) > 1;
      if (sequence.copies_last_page) state_.pool.drop(sequence.table.back());
      needed += state_.pages_of(sequence.length + count) - state_.pages_of(sequence.length) +
                (sequence.copies_last_page ? 1 : 0);
      added += count;
    });
    const std::int64_t free = state_.pool.free();
    if (needed <= free) return;
    undo();
    throw refusal(Error::capacity, "cache: ", added, added == 1 ? " token needs " : " tokens need ", needed,
                  needed == 1 ? " page, " : " pages, ", free, free == 1 ? " is free" : " are free");
  }
  ~Claim() {
    if (!is_kept_) undo();
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  void keep() noexcept { is_kept_ = true; }

 private:
  template <class Body>
  void for_each(const Body& body) {
    for (std::int64_t b = 0; b < tokens_.k.shape.batch; ++b)
      if (tokens_.count(b) > 0)
        body(state_.sequences[static_cast<std::size_t>(tokens_.first + b)], tokens_.count(b));
  }

  void undo() noexcept {
    for_each([&](CachedSequence& sequence, std::int64_t) {
      for (std::int64_t i = sequence.held_from; i < end_of_unseen_pages(state_, sequence); ++i)
        state_.pool.share(sequence.table[static_cast<std::size_t>(i)]);
      if (sequence.copies_last_page) state_.pool.share(sequence.table.back());
      sequence.copies_last_page = false;
    });
    state_.pool.forget_returned(returned_before_);
  }

  State& state_;
  const NewTokens& tokens_;
  std::size_t returned_before_;
  bool is_kept_ = false;
};

// A table grows by doubling where its room was not all reserved when its sequence was made.
void make_room_in_tables(State& state, const NewTokens& tokens) {
  for (std::int64_t b = 0; b < tokens.k.shape.batch; ++b) {
    CachedSequence& sequence = state.sequences[static_cast<std::size_t>(tokens.first + b)];
    const auto pages = static_cast<std::size_t>(state.pages_of(sequence.length + tokens.count(b)));
    if (pages > sequence.table.capacity())
      sequence.table.reserve(std::max(pages, 2 * sequence.table.capacity()));
  }
}

Error not_finite(const char* name, const NotFinite& at, std::int64_t sequence) {
  return refusal(Error::value, name, ": token ", at.token, " of head ", at.head, " for sequence ", sequence,
                 " is not finite; an int8 cache holds finite numbers only");
}

// What an int8 cache cannot hold: its scale would be no number.
void check_finite(const State& state, const char* name, const Source& source, const NewTokens& tokens) {
  for_each_entry(tokens, [&](std::int64_t b, std::int64_t count, std::int64_t before) {
    if (const DevicePages* device = state.pool.on_device()) {
      const NotFinite found = device->find_not_finite(source.view, b, count);
      if (found.token >= 0) throw not_finite(name, found, tokens.first + b);
      return;
    }
    for (std::int64_t h = 0; h < source.view.shape.heads; ++h) {
      const std::int64_t t =
          find_token_not_finite(source.rows(b, before, h, 0), {count, source.view.shape.dim});
      if (t >= 0) throw not_finite(name, {h, t}, tokens.first + b);
    }
  });
}

// Calls body(run, before) for what goes into each page.
template <class Body>
void for_each_run(const State& state, const NewTokens& tokens, const Body& body) {
  const std::int64_t page_size = state.layout.page_size;
  for_each_entry(tokens, [&](std::int64_t b, std::int64_t all, std::int64_t before) {
    const CachedSequence& sequence = state.sequences[static_cast<std::size_t>(tokens.first + b)];
    for (std::int64_t done = 0; done < all;) {
      const std::int64_t at = sequence.length + done, first = at % page_size;
      const std::int64_t count = std::min(all - done, page_size - first);
      const unsigned char* page = sequence.table[static_cast<std::size_t>(at / page_size)];
      body(TokenRun{page, first, count, b, done}, before);
      done += count;
    }
  });
}

void write(const State& state, const Source& source, const NewTokens& tokens, Side side) {
  if (const DevicePages* device = state.pool.on_device()) {
    std::vector<TokenRun> runs;
    for_each_run(state, tokens, [&](const TokenRun& run, std::int64_t) { runs.push_back(run); });
    return device->store({state.layout, state.config.type, side}, source.view, runs);
  }
  for_each_run(state, tokens, [&](const TokenRun& run, std::int64_t before) {
    for (std::int64_t h = 0; h < state.layout.kv_heads; ++h)
      store_tokens(
          {&state.layout, state.config.type, run.page + h * state.layout.head_bytes(), run.first, run.count},
          side, source.rows(run.b, before, h, run.t));
  });
}

void copy_last_page(const State& state, const unsigned char* from, unsigned char* into, std::int64_t count) {
  if (const DevicePages* device = state.pool.on_device())
    device->copy(from, into, state.layout.page_bytes());
  else
    copy_tokens(state.layout, from, into, count);
}

// Gives a sequence its pages: zeros for those the window let go of, a copy of a last page that others read,
// new ones.
void take_pages(State& state, CachedSequence& sequence, std::int64_t count) {
  const std::int64_t unseen_end = end_of_unseen_pages(state, sequence);
  for (; sequence.held_from < unseen_end; ++sequence.held_from)
    sequence.table[static_cast<std::size_t>(sequence.held_from)] = state.pool.zeros();
  if (sequence.copies_last_page) {
    unsigned char* own = state.pool.take();
    const unsigned char* shared = std::exchange(sequence.table.back(), own);
    sequence.copies_last_page = false;
    copy_last_page(state, shared, own, sequence.length % state.layout.page_size);
  }
  const auto pages = static_cast<std::size_t>(state.pages_of(sequence.length + count));
  while (sequence.table.size() < pages) sequence.table.push_back(state.pool.take());
}

}  // namespace

void append_tokens(State& state, const NewTokens& tokens) {
  check_tokens(state, tokens);
  make_room_in_tables(state, tokens);
  Claim claim(state, tokens);
  std::optional<RotatedKeys> turned;
  if (state.config.rotary && state.config.rotary->when == CacheRotary::When::append)
    turned.emplace(state, tokens);
  const Source keys = turned ? turned->source() : Source{tokens.k}, values{tokens.v};
  if (state.config.type == CacheType::int8) {
    check_finite(state, "k", keys, tokens);
    check_finite(state, "v", values, tokens);
  }

  claim.keep();
  const auto sequence_of = [&](std::int64_t b) -> CachedSequence& {
    return state.sequences[static_cast<std::size_t>(tokens.first + b)];
  };
  try {
    for_each_entry(tokens, [&](std::int64_t b, std::int64_t count, std::int64_t) {
      take_pages(state, sequence_of(b), count);
    });
    write(state, keys, tokens, Side::keys);
    write(state, values, tokens, Side::values);
  } catch (...) {  // a device's, and no one else's
    for_each_entry(tokens, [&](std::int64_t b, std::int64_t, std::int64_t) {
      state.shorten(sequence_of(b), sequence_of(b).length);
    });
    throw;
  }
  for_each_entry(tokens,
                 [&](std::int64_t b, std::int64_t count, std::int64_t) { sequence_of(b).length += count; });
}

}  // namespace heed::cache
