// SPDX-License-Identifier: Apache-2.0
// Appends tokens to sequences: pages are taken, shared ones copied, keys rotated, and all of it undone where
// something is refused.
#include "cache/append.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/state.hpp"
#include "cache/store.hpp"
#include "refusal/refusal.hpp"
#include "rotary/rotary.hpp"

namespace heed::cache {

namespace {

struct Expected {
  std::int64_t extent;
  const char* what;
};

void check_extents(const State& state, const char* name, const View& view,
                   const std::array<Expected, 4>& expected) {
  const Axes extent = axes(view.shape);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] != expected[i].extent)
      throw refusal(Error::shape, name, ".", axis_names[i], ": ", extent[i], " is not ", expected[i].what,
                    ": ", expected[i].extent);
  check_argument({name, view});
  check_device({name, view}, "the cache's", state.config.device);
  if (state.pool.on_device()) state.pool.on_device()->check_place(name, view);
}

void check_counts(const NewTokens& tokens) {
  const auto entries = static_cast<std::int64_t>(tokens.counts.size());
  if (entries != 0 && entries != tokens.k.shape.batch)
    throw refusal(Error::shape, "counts: ", entries, " entries for ", tokens.k.shape.batch, " sequences");
  for (std::int64_t b = 0; b < tokens.k.shape.batch; ++b)
    if (const std::int64_t count = tokens.count(b); count < 0 || count > tokens.k.shape.length)
      throw refusal(Error::value, "counts[", b, "]: ", count, " is not in [0, ", tokens.k.shape.length,
                    "], the tokens of k");
}

}  // namespace

void check_tokens(const State& state, const NewTokens& tokens) {
  const View &k = tokens.k, &v = tokens.v;
  check_extents(state, "k", k,
                {{{tokens.numbers.count, tokens.whose},
                  {state.config.kv_heads, "the cache's kv_heads"},
                  {k.shape.length, ""},
                  {state.config.dim, "the cache's dim"}}});
  check_extents(state, "v", v,
                {{{k.shape.batch, "k.batch"},
                  {state.config.kv_heads, "the cache's kv_heads"},
                  {k.shape.length, "k.length"},
                  {*state.config.value_dim, "the cache's value_dim"}}});
  check_counts(tokens);
}

void check_results(const State& state, std::int64_t length, const MutableView& k, const MutableView& v) {
  const auto check = [&](const char* name, const View& view, const Expected& dim) {
    check_extents(state, name, view,
                  {{{1, "the one sequence"},
                    {state.config.kv_heads, "the cache's kv_heads"},
                    {length, "the sequence's length"},
                    dim}});
    check_own_places({name, view});
  };
  check("k", k, {state.config.dim, "the cache's dim"});
  check("v", v, {*state.config.value_dim, "the cache's value_dim"});
  check_apart({"v", v}, {"k", k});
}

Rows rows_of(const View& view, std::int64_t b, std::int64_t h, std::int64_t t) {
  const std::int64_t elements = b * view.stride.batch + h * view.stride.heads + t * view.stride.length;
  const auto bytes = static_cast<std::int64_t>(bytes_of(view.dtype));
  const Shape& n = view.shape;  // the stride of an axis of one entry may be any number: no row is that far on
  return {static_cast<const unsigned char*>(view.data) + elements * bytes, view.dtype,
          n.length > 1 ? view.stride.length : 0, n.dim > 1 ? view.stride.dim : 1};
}

// The keys or values of an append: as given, (batch, heads, tokens, dim), or the counted tokens of all batch
// entries one after the other, (1, heads, all tokens, dim).
struct Source {
  View view;
  bool is_joined = false;

  // `before` tokens are those of the batch entries before b.
  Rows rows(std::int64_t b, std::int64_t before, std::int64_t h, std::int64_t t) const {
    return is_joined ? rows_of(view, 0, h, before + t) : rows_of(view, b, h, t);
  }
};

// Calls body(b, count, before) for every batch entry that gets tokens.
template <class Body>
void for_each_entry(const NewTokens& tokens, const Body& body) {
  for (std::int64_t b = 0, before = 0; b < tokens.numbers.count; before += tokens.count(b), ++b)
    if (tokens.count(b) > 0) body(b, tokens.count(b), before);
}

// The same with its sequence: body(sequence, count).
template <class Body>
void for_each_sequence(State& state, const NewTokens& tokens, const Body& body) {
  for_each_entry(tokens, [&](std::int64_t b, std::int64_t count, std::int64_t) {
    body(state.sequences[tokens.numbers[b]], count);
  });
}

// The new keys rotated by their positions, in f32, where the pages lie. A scaling that asks for a length goes
// by that of each sequence after the append.
class RotatedKeys {
 public:
  RotatedKeys(const State&, const NewTokens&);
  Source source() const { return source_; }

 private:
  void rotate_counted(const State&, const NewTokens&);
  void rotate_on(const DevicePages&, const State&, const NewTokens&);

  std::vector<float> floats_{};
  DeviceArray there_{};
  Source source_{};
};

namespace {

std::int64_t length_of(const State& state, const NewTokens& tokens, std::int64_t b) {
  return state.sequences[tokens.numbers[b]].length;
}

}  // namespace

RotatedKeys::RotatedKeys(const State& state, const NewTokens& tokens) {
  if (const DevicePages* device = state.pool.on_device())
    rotate_on(*device, state, tokens);
  else
    rotate_counted(state, tokens);
}

void RotatedKeys::rotate_counted(const State& state, const NewTokens& tokens) {
  std::int64_t all = 0;
  for_each_entry(tokens, [&](std::int64_t, std::int64_t count, std::int64_t) { all += count; });
  const Shape shape{1, tokens.k.shape.heads, all, tokens.k.shape.dim};
  floats_.resize(static_cast<std::size_t>(shape.elements()));
  std::vector<std::int64_t> positions(static_cast<std::size_t>(all));
  for_each_entry(tokens, [&](std::int64_t b, std::int64_t count, std::int64_t before) {
    const auto at = positions.begin() + before;
    std::iota(at, at + count, length_of(state, tokens, b));
    for (std::int64_t h = 0; h < shape.heads; ++h)
      widen(rows_of(tokens.k, b, h, 0), {count, shape.dim}, floats_.data() + (h * all + before) * shape.dim);
  });
  const MutableView keys(floats_.data(), shape);
  source_ = {keys, true};
  const Rotary& rotary = state.config.rotary->rotary;
  if (!rotary::depends_on_length(rotary)) return state.pool.backend().rotate({{keys}}, positions, rotary, {});
  for_each_entry(tokens, [&](std::int64_t, std::int64_t count, std::int64_t before) {
    MutableView own = keys;
    own.data = floats_.data() + before * keys.stride.length;
    own.shape.length = count;
    state.pool.backend().rotate(
        {{own}},
        std::span(positions).subspan(static_cast<std::size_t>(before), static_cast<std::size_t>(count)),
        rotary, {});
  });
}

// All tokens that were given: those that are not counted go no further, and a sequence that gets none may be
// another call's.
void RotatedKeys::rotate_on(const DevicePages& device, const State& state, const NewTokens& tokens) {
  const Shape& shape = tokens.k.shape;
  source_ = {tokens.k};
  if (shape.elements() == 0) return;
  there_ = device.make(shape, DType::f32);
  state.pool.backend().copy(tokens.k, there_.view);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(shape.batch * shape.length)), lengths;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const auto at = positions.begin() + b * shape.length;
    const std::int64_t held = tokens.count(b) > 0 ? length_of(state, tokens, b) : 0;
    std::iota(at, at + shape.length, held);
    lengths.push_back(held + tokens.count(b));
  }
  state.pool.backend().rotate({{there_.view}}, positions, state.config.rotary->rotary, lengths);
  source_ = {there_.view};
}

// Appending: everything that can fail happens first, then pages change hands and tokens are written.

namespace {

// A table grows by doubling where its room was not all reserved when its sequence was made.
void make_room(State& state, const NewTokens& tokens) {
  for_each_entry(tokens, [&](std::int64_t b, std::int64_t count, std::int64_t) {
    CachedSequence& sequence = state.sequences[tokens.numbers[b]];
    if (count > state.config.capacity - sequence.length)
      throw refusal(Error::capacity, "sequence ", tokens.numbers[b], " holds ", sequence.length, " of ",
                    state.config.capacity, " tokens; ", count, " more do not fit");
    const auto pages = static_cast<std::size_t>(state.pages_of(sequence.length + count));
    if (pages > sequence.table.capacity())
      sequence.table.reserve(std::max(pages, 2 * sequence.table.capacity()));
  });
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
      if (found.token >= 0) throw not_finite(name, found, tokens.numbers[b]);
      return;
    }
    for (std::int64_t h = 0; h < source.view.shape.heads; ++h) {
      const std::int64_t t =
          find_token_not_finite(source.rows(b, before, h, 0), {count, source.view.shape.dim});
      if (t >= 0) throw not_finite(name, {h, t}, tokens.numbers[b]);
    }
  });
}

// Calls body(run, before) for what goes into each page.
template <class Body>
void for_each_run(const State& state, const NewTokens& tokens, const Body& body) {
  const std::int64_t page_size = state.layout.page_size;
  for_each_entry(tokens, [&](std::int64_t b, std::int64_t all, std::int64_t before) {
    const CachedSequence& sequence = state.sequences[tokens.numbers[b]];
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

// Pages [held_from, this one) are what the window lets go of before an append. The tokens to come see keys
// from length - window.length + 1 on; one more is kept, which the last token of before sees, so that the
// append can be rolled back.
std::int64_t end_of_unseen_pages(const State& state, const CachedSequence& sequence) {
  if (!state.config.window) return sequence.held_from;
  const std::int64_t unseen = std::max<std::int64_t>(sequence.length - state.config.window->length, 0);
  return std::max(sequence.held_from, unseen / state.layout.page_size);
}

// Calls body(page) for every page that the window lets go of before an append.
template <class Body>
void for_each_unseen_page(const State& state, const CachedSequence& sequence, const Body& body) {
  for (std::int64_t i = sequence.held_from; i < end_of_unseen_pages(state, sequence); ++i)
    body(sequence.table[static_cast<std::size_t>(i)]);
}

// Counts the pages of an append as if those that it leaves were free, and leaves them: first what windows let
// go of, then last pages that others still read, of which there will be copies. Of those one user is always
// left, so that no page that this append copies is one that it takes. Or refuses, and all is as it was. Under
// the lock.
void leave_pages(State& state, const NewTokens& tokens) {
  const std::size_t returned_before = state.pool.returned();
  std::int64_t needed = 0, added = 0;
  for_each_sequence(state, tokens, [&](CachedSequence& sequence, std::int64_t) {
    for_each_unseen_page(state, sequence, [&](const unsigned char* page) { state.pool.drop(page); });
  });
  for_each_sequence(state, tokens, [&](CachedSequence& sequence, std::int64_t count) {
    const bool writes_last_page = sequence.length % state.layout.page_size != 0;
    if (writes_last_page && state.pool.users(sequence.table.back()) > 1)
      state.pool.drop(sequence.copied_from = sequence.table.back());
    needed += state.pages_of(sequence.length + count) - state.pages_of(sequence.length) +
              (sequence.copied_from ? 1 : 0);
    added += count;
  });
  const std::int64_t free = state.pool.free();
  if (needed <= free) return;
  for_each_sequence(state, tokens, [&](CachedSequence& sequence, std::int64_t) {
    for_each_unseen_page(state, sequence, [&](const unsigned char* page) { state.pool.share(page); });
    if (sequence.copied_from) state.pool.share(std::exchange(sequence.copied_from, nullptr));
  });
  state.pool.forget_returned(returned_before);
  throw refusal(Error::capacity, "cache: ", added, added == 1 ? " token needs " : " tokens need ", needed,
                needed == 1 ? " page, " : " pages, ", free, free == 1 ? " is free" : " are free");
}

// Gives a sequence its pages: zeros for those the window let go of, its own in place of a last page that
// others read, new ones. Under the lock.
void take_pages(State& state, CachedSequence& sequence, std::int64_t count) noexcept {
  const std::int64_t unseen_end = end_of_unseen_pages(state, sequence);
  for (; sequence.held_from < unseen_end; ++sequence.held_from)
    sequence.table[static_cast<std::size_t>(sequence.held_from)] = state.pool.zeros();
  if (sequence.copied_from) {
    state.pool.begin_copy(sequence.copied_from);
    sequence.table.back() = state.pool.take();
  }
  const auto pages = static_cast<std::size_t>(state.pages_of(sequence.length + count));
  while (sequence.table.size() < pages) sequence.table.push_back(state.pool.take());
}

// The pages of an append, from its claim on: shared last pages are copied without the lock.
class ClaimedPages {
 public:
  ClaimedPages(State& state, const NewTokens& tokens) : state_(state), tokens_(tokens) {
    const std::lock_guard guard(state.lock);
    leave_pages(state, tokens);
    for_each_sequence(state, tokens, [&](CachedSequence& sequence, std::int64_t count) {
      take_pages(state, sequence, count);
    });
    has_copies_ =
        state.pool.has_copies();  // of other calls too: later ones copy no page that is written here
  }

  // Afterwards the pages can be written to: the tokens of before are there, and nobody copies from them.
  void copy_shared() {
    if (!has_copies_) return;
    wait_for_copies(Pages::taken);
    for_each_sequence(state_, tokens_, [&](CachedSequence& sequence, std::int64_t) {
      if (sequence.copied_from) copy_last_page(sequence);
    });
    {
      const std::lock_guard guard(state_.lock);
      end_copies();
    }
    wait_for_copies(Pages::written);
  }

  // Gives new pages back, where a device could not do what it should. What a window let go of is gone.
  void give_back() noexcept {
    const std::lock_guard guard(state_.lock);
    end_copies();
    for_each_sequence(state_, tokens_, [&](CachedSequence& sequence, std::int64_t) {
      state_.shorten(sequence, sequence.length);
    });
  }

 private:
  void copy_last_page(const CachedSequence& sequence) const {
    const std::int64_t last = sequence.length / state_.layout.page_size,
                       count = sequence.length % state_.layout.page_size;
    auto* into = const_cast<unsigned char*>(sequence.table[static_cast<std::size_t>(last)]);
    if (const DevicePages* device = state_.pool.on_device())
      device->copy(sequence.copied_from, into, state_.layout.page_bytes());
    else
      copy_tokens(state_.layout, sequence.copied_from, into, count);
  }

  void end_copies() noexcept {
    for_each_sequence(state_, tokens_, [&](CachedSequence& sequence, std::int64_t) {
      if (sequence.copied_from) state_.pool.end_copy(std::exchange(sequence.copied_from, nullptr));
    });
    state_.has_left.notify_all();
  }

  // Those that were free before, which even a copy may not be written to; or all, with last pages that are
  // written on where they lie, from which this call itself may copy.
  enum class Pages : std::uint8_t { taken, written };

  void wait_for_copies(Pages pages) const {
    std::unique_lock guard(state_.lock);
    // fault: copy-not-waited-for
    state_.has_left.wait(guard, [&] { return !is_copied(pages); });
  }

  bool is_copied(Pages pages) const {
    bool found = false;
    for_each_sequence(state_, tokens_, [&](const CachedSequence& sequence, std::int64_t) {
      const std::int64_t held = sequence.length % state_.layout.page_size;
      const bool is_last_kept = pages == Pages::taken && held != 0 && !sequence.copied_from;
      const auto last = static_cast<std::size_t>(sequence.length / state_.layout.page_size);
      for (std::size_t i = last + (is_last_kept ? 1 : 0); i < sequence.table.size(); ++i)
        found = found || state_.pool.is_copied(sequence.table[i]);
    });
    return found;
  }

  State& state_;
  const NewTokens& tokens_;
  bool has_copies_ = false;
};

}  // namespace

void append_tokens(State& state, const NewTokens& tokens) {
  make_room(state, tokens);
  std::optional<RotatedKeys> rotated;
  if (state.config.rotary && state.config.rotary->when == CacheRotary::When::append)
    rotated.emplace(state, tokens);
  const Source keys = rotated ? rotated->source() : Source{tokens.k}, values{tokens.v};
  if (state.config.type == CacheType::int8) {
    check_finite(state, "k", keys, tokens);
    check_finite(state, "v", values, tokens);
  }

  ClaimedPages pages(state, tokens);
  try {
    pages.copy_shared();
    write(state, keys, tokens, Side::keys);
    write(state, values, tokens, Side::values);
  } catch (...) {  // a device's, and no one else's
    pages.give_back();
    throw;
  }
  const std::lock_guard guard(state.lock);
  for_each_sequence(state, tokens,
                    [](CachedSequence& sequence, std::int64_t count) { sequence.length += count; });
}

// Who changes sequences.

namespace {

void check_in_use(const State& state, const NewTokens& tokens, std::int64_t b) {
  const std::int64_t number = tokens.numbers[b];
  if (tokens.numbers.listed.empty() && state.sequences[number].is_released)
    throw refusal(Error::value, "sequence: ", number, " is released, but gets ", tokens.count(b),
                  tokens.count(b) == 1 ? " token" : " tokens");
  state.at(number);
}

}  // namespace

template <class Body>
void Changing::for_each(const Body& body) const {
  for (std::int64_t b = 0; b < tokens_.numbers.count; ++b)
    if (tokens_.changes(b)) body(state_.sequences[tokens_.numbers[b]]);
}

Changing::Changing(State& state, const NewTokens& tokens, const char* call) : state_(state), tokens_(tokens) {
  const std::lock_guard guard(state_.lock);
  for (std::int64_t b = 0; b < tokens.numbers.count; ++b) {
    if (!tokens.changes(b)) continue;
    check_in_use(state, tokens, b);
    state.check_alone(call, tokens.numbers[b]);
  }
  for_each([](CachedSequence& sequence) { sequence.is_changed = true; });
}

Changing::~Changing() {
  const std::lock_guard guard(state_.lock);
  for_each([&](CachedSequence& sequence) {
    if (has_readers_)
      --sequence.readers;
    else
      sequence.is_changed = false;
  });
}

void Changing::let_readers_in() noexcept {
  const std::lock_guard guard(state_.lock);
  for_each([](CachedSequence& sequence) { ++sequence.readers, sequence.is_changed = false; });
  has_readers_ = true;
}

void Changing::wait_for_readers() noexcept {
  std::unique_lock guard(state_.lock);
  for_each([](CachedSequence& sequence) { --sequence.readers, sequence.is_changed = true; });
  has_readers_ = false;
  for_each(
      [&](CachedSequence& sequence) { state_.has_left.wait(guard, [&] { return sequence.readers == 0; }); });
}

}  // namespace heed::cache
