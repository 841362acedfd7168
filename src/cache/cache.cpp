// SPDX-License-Identifier: Apache-2.0
// KvCache: its configuration, what its sequences do to its pages, who is at it, and the calls that make,
// fork, release and count sequences.
#include "heed/cache.hpp"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>

#include "cache/append.hpp"
#include "cache/reading.hpp"
#include "cache/state.hpp"
#include "refusal/refusal.hpp"
#include "rotary/rotary.hpp"

namespace heed::cache {
namespace {

constexpr std::int64_t max_entries = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t max_tokens = std::int64_t{1} << 60;
constexpr std::int64_t max_bytes =
    std::min<std::int64_t>(max_tokens, std::numeric_limits<std::ptrdiff_t>::max());

void check_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    throw refusal(Error::value, "config.", name, ": ", value, " is not in [", least, ", ", most, "]");
}

bool fits(std::int64_t most, std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product) || product > most) return false;
  return true;
}

void check_pages(const KvCacheConfig& c) {
  const std::int64_t page_size = *c.page_size;
  const bool is_contiguous = page_size == PageLayout::whole(c.capacity, PageLayout::tile);
  if (!is_contiguous && (page_size < PageLayout::tile || !std::has_single_bit(std::uint64_t(page_size))))
    throw refusal(Error::value, "config.page_size: ", page_size, " is not a power of two of at least ",
                  PageLayout::tile);
  // More than any page takes: elements of 4 bytes, two scales, and parts rounded up to lines of 64 bytes.
  const std::int64_t max_per_token = 4 * (c.dim + *c.value_dim + 64);
  if (!fits(max_bytes, {page_size, c.kv_heads, max_per_token, *c.pages + 1}))
    throw refusal(Error::capacity, "config.pages: ", *c.pages, " pages of ", page_size,
                  " tokens are beyond any memory");
}

void check_choices(const KvCacheConfig& c) {
  if (c.type > CacheType::int8)
    throw refusal(Error::value, "config.type: ", static_cast<std::int64_t>(c.type),
                  " is none of f32, f16, bf16, int8");
  if (c.window) {
    check_range("window.length", c.window->length, 1, max_tokens);
    check_range("window.front", c.window->front, 0, max_tokens);
  }
  if (c.device > Device::cuda) throw unknown_device("config", c.device);
  if (!c.rotary) return;
  rotary::check_rotary(c.rotary->rotary, c.dim, "config.rotary");
  if (c.rotary->when > CacheRotary::When::read)
    throw refusal(Error::value, "config.rotary.when: ", static_cast<std::int64_t>(c.rotary->when),
                  " is none of append, read");
}

PageLayout layout_of(const KvCacheConfig& c) {
  const bool is_quantized = c.type == CacheType::int8;
  const std::int64_t bytes = is_quantized ? 1 : c.type == CacheType::f32 ? 4 : 2;
  return {.page_size = *c.page_size,
          .kv_heads = c.kv_heads,
          .dim = c.dim,
          .value_dim = *c.value_dim,
          .element_bytes = bytes,
          .is_quantized = is_quantized};
}

}  // namespace

KvCacheConfig complete(const KvCacheConfig& config) {
  KvCacheConfig c = config;
  check_range("batch", c.batch, 0, max_entries);
  check_range("kv_heads", c.kv_heads, 1, max_entries);
  check_range("capacity", c.capacity, 1, max_tokens);
  check_range("dim", c.dim, 1, max_entries);
  if (!c.value_dim) c.value_dim = c.dim;
  check_range("value_dim", *c.value_dim, 1, max_entries);
  if (!c.page_size) c.page_size = PageLayout::whole(c.capacity, PageLayout::tile);
  check_range("page_size", *c.page_size, 1, 2 * max_tokens);
  if (!c.pages) {
    if (c.batch == 0)
      throw refusal(Error::value,
                    "config.pages: must be given, since config.batch is 0 and says nothing of how many");
    const std::int64_t per_sequence = (c.capacity - 1) / *c.page_size + 1;
    c.pages = fits(max_tokens, {c.batch, per_sequence}) ? c.batch * per_sequence : max_tokens;
  }
  check_range("pages", *c.pages, 1, max_entries);
  check_choices(c);
  check_pages(c);
  return c;
}

CacheGeometry::CacheGeometry(const KvCacheConfig& complete_config)
    : config(complete_config), layout(layout_of(complete_config)) {}

// Sequences come, go, grow shorter and share pages.

State::State(const CacheGeometry& geometry)
    : CacheGeometry(geometry),
      pool({.pages = *config.pages,
            .page_bytes = layout.page_bytes(),
            .zero_bytes = config.window ? layout.page_bytes() : 0,
            .device = config.device}) {}

const CachedSequence& State::at(std::int64_t number) const {
  if (number < 0 || number >= sequences.size())
    throw refusal(Error::value, "sequence: ", number, " is not in [0, ", sequences.size(), ")");
  const CachedSequence& sequence = sequences[number];
  if (sequence.is_released) throw refusal(Error::value, "sequence: ", number, " is released");
  return sequence;
}

void State::check_not_changed(const char* call, std::int64_t number) const {
  if (sequences[number].is_changed)
    throw refusal(Error::busy, call, ": sequence ", number, " is being changed by another call");
}

void State::check_alone(const char* call, std::int64_t number) const {
  check_not_changed(call, number);
  if (sequences[number].readers > 0)
    throw refusal(Error::busy, call, ": sequence ", number, " is being read by another call");
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
  std::int64_t number = released > 0 ? 0 : sequences.size();
  while (number < sequences.size() && !sequences[number].is_released) ++number;
  const auto room = static_cast<std::size_t>(pages);
  if (number == sequences.size()) {
    std::vector<const unsigned char*> table;
    table.reserve(room);
    sequences.add().table = std::move(table);
  } else {
    sequences[number].table.reserve(room);
    sequences[number].is_released = false;
    --released;
  }
  sequences[number].held_from = front_pages();
  return number;
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

// Who is at a sequence right now.

CacheReading::CacheReading(const KvCache& cache, SequenceNumbers numbers, const char* call)
    : state_(Access::state(cache)) {
  const std::lock_guard guard(state_.lock);
  for (const std::int64_t number : numbers) state_.at(number);
  begin(std::move(numbers), call);
}

CacheReading CacheReading::of_all(const KvCache& cache, const char* call) {
  CacheReading all(Access::state(cache));
  {
    const std::lock_guard guard(all.state_.lock);
    SequenceNumbers numbers;
    for (std::int64_t number = 0; number < all.state_.sequences.size(); ++number)
      if (!all.state_.sequences[number].is_released) numbers.push_back(number);
    all.begin(std::move(numbers), call);
  }
  return all;
}

void CacheReading::begin(SequenceNumbers&& numbers, const char* call) {
  for (const std::int64_t number : numbers) state_.check_not_changed(call, number);
  for (const std::int64_t number : numbers) ++state_.sequences[number].readers;
  numbers_ = std::move(numbers);
  sequences_ = state_.sequences.size();
}

CacheReading::CacheReading(const CacheReading& other)
    : state_(other.state_), numbers_(other.numbers_), sequences_(other.sequences_) {
  const std::lock_guard guard(state_.lock);
  for (const std::int64_t number : numbers_) ++state_.sequences[number].readers;
}

CacheReading::~CacheReading() {
  const std::lock_guard guard(state_.lock);
  for (const std::int64_t number : numbers_) {
    const CachedSequence& sequence = state_.sequences[number];
    if (--sequence.readers == 0 && sequence.is_changed) state_.has_left.notify_all();
  }
}

PagedSequence CacheReading::sequence(std::int64_t n) const {
  const CachedSequence& sequence = state_.sequences[n];
  return {sequence.table.data(), sequence.length};
}

const PageLayout& layout_of(const KvCache& cache) { return Access::state(cache).layout; }

}  // namespace heed::cache

// The calls of KvCache that count sequences, or change them by their tables alone: all of it under the lock.

namespace HEED_NAMESPACE {
using namespace cache;

namespace {

// Room in a table for all the pages its sequence can have, so that appending need not allocate. A window's
// released pages count too, and may take it beyond what the pool has.
std::int64_t usual_pages(const State& state) {
  return std::min(state.pages_of(state.config.capacity), state.pool.pages());
}

}  // namespace

KvCache::KvCache(const KvCacheConfig& config)
    : state_(std::make_unique<State>(CacheGeometry(complete(config)))) {
  for (std::int64_t b = 0; b < state_->config.batch; ++b) state_->add_sequence(usual_pages(*state_));
}

KvCache::KvCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

const KvCacheConfig& KvCache::config() const { return state_->config; }

std::int64_t KvCache::sequences() const {
  const std::lock_guard guard(state_->lock);
  return state_->sequences.size();
}

std::int64_t KvCache::length(std::int64_t sequence) const {
  const std::lock_guard guard(state_->lock);
  return state_->at(sequence).length;
}

std::vector<std::optional<std::int64_t>> KvCache::lengths() const {
  const std::lock_guard guard(state_->lock);
  std::vector<std::optional<std::int64_t>> all(static_cast<std::size_t>(state_->sequences.size()));
  for (std::size_t n = 0; n < all.size(); ++n) {
    const CachedSequence& sequence = state_->sequences[static_cast<std::int64_t>(n)];
    if (!sequence.is_released) all[n] = sequence.length;
  }
  return all;
}

void KvCache::append(const View& k, const View& v, std::span<const std::int64_t> counts) {
  const NewTokens tokens{k, v, {{}, sequences()}, "the cache's sequences", counts};
  check_tokens(*state_, tokens);
  const Changing changing(*state_, tokens, "append");
  append_tokens(*state_, tokens);
}

void KvCache::append_to(std::int64_t sequence, const View& k, const View& v) {
  const NewTokens tokens{k, v, {{&sequence, 1}, 1}, "the one sequence", {}};
  const Changing changing(*state_, tokens, "append_to");
  check_tokens(*state_, tokens);
  append_tokens(*state_, tokens);
}

void KvCache::truncate(std::int64_t sequence, std::int64_t length) {
  const std::lock_guard guard(state_->lock);
  state_->check_prefix(sequence, length);
  state_->check_alone("truncate", sequence);
  state_->shorten(state_->at(sequence), length);
}

void KvCache::reset(std::int64_t sequence) {
  const std::lock_guard guard(state_->lock);
  CachedSequence& shortened = state_->at(sequence);
  state_->check_alone("reset", sequence);
  state_->shorten(shortened, 0);
}

void KvCache::reset() {
  const std::lock_guard guard(state_->lock);
  SequenceList& all = state_->sequences;
  for (std::int64_t n = 0; n < all.size(); ++n) state_->check_alone("reset", n);
  for (std::int64_t n = 0; n < all.size(); ++n) state_->shorten(all[n], 0);
}

std::int64_t KvCache::fork(std::int64_t sequence, std::optional<std::int64_t> length) {
  const std::lock_guard guard(state_->lock);
  const CachedSequence& from = state_->at(sequence);
  state_->check_not_changed("fork", sequence);
  const std::int64_t tokens = length.value_or(from.length);
  state_->check_prefix(sequence, tokens);
  const std::int64_t pages = state_->pages_of(tokens);
  const std::int64_t number = state_->add_sequence(std::max(pages, usual_pages(*state_)));
  CachedSequence& made = state_->at(number);
  made.table.assign(from.table.begin(), from.table.begin() + pages);
  state_->share_pages(made);
  made.length = tokens;
  made.held_from = pages > state_->front_pages() ? from.held_from : state_->front_pages();
  return number;
}

void KvCache::release(std::int64_t sequence) {
  const std::lock_guard guard(state_->lock);
  CachedSequence& released = state_->at(sequence);
  state_->check_alone("release", sequence);
  state_->shorten(released, 0);
  released.is_released = true;
  ++state_->released;
}

std::int64_t KvCache::add() {
  const std::lock_guard guard(state_->lock);
  return state_->add_sequence(usual_pages(*state_));
}

namespace {

// How often the tables of the sequences that are read list each page of the pool.
std::vector<std::int32_t> uses_of_pages(const State& state, const CacheReading& reading) {
  std::vector<std::int32_t> uses;
  for (const std::int64_t n : reading.numbers())
    for (const unsigned char* page : state.sequences[n].table) {
      if (page == state.pool.zeros()) continue;
      const auto number = static_cast<std::size_t>(state.pool.number_of(page));
      if (number >= uses.size()) uses.resize(number + 1);
      ++uses[number];
    }
  return uses;
}

}  // namespace

KvCache KvCache::to(Device device, std::optional<std::int64_t> pages) const {
  const CacheReading reading = CacheReading::of_all(*this, "to");
  KvCacheConfig config = state_->config;
  config.device = device;
  const std::vector<std::int32_t> uses = uses_of_pages(*state_, reading);
  if (pages && *pages < std::ssize(uses))
    throw refusal(Error::capacity, "pages: ", *pages, " are fewer than the ", std::ssize(uses),
                  " up to the last that is in use");
  if (pages) config.pages = pages;
  auto made = std::make_unique<State>(CacheGeometry(complete(config)));
  made->pool.copy(state_->pool, uses);
  while (made->sequences.size() < reading.sequences()) {
    made->sequences.add().is_released = true;
    ++made->released;
  }
  for (const std::int64_t n : reading.numbers()) {
    const CachedSequence& from = state_->sequences[n];
    CachedSequence& sequence = made->sequences[n];
    sequence.is_released = false;
    --made->released;
    sequence.length = from.length;
    sequence.held_from = from.held_from;
    sequence.table.reserve(std::max(from.table.size(), static_cast<std::size_t>(usual_pages(*made))));
    for (const unsigned char* page : from.table)
      sequence.table.push_back(page == state_->pool.zeros() ? made->pool.zeros()
                                                            : made->pool.at(state_->pool.number_of(page)));
  }
  return KvCache(std::move(made));
}

std::int64_t KvCache::bytes() const { return pages_in_use() * state_->layout.page_bytes(); }

std::int64_t KvCache::bytes_per_token() const {
  const PageLayout& layout = state_->layout;
  const std::int64_t scales = layout.is_quantized ? 2 * 4 : 0;
  return layout.kv_heads * ((layout.dim + layout.value_dim) * layout.element_bytes + scales);
}

std::int64_t KvCache::pages_in_use() const {
  const std::lock_guard guard(state_->lock);
  return state_->pool.in_use();
}

}  // namespace HEED_NAMESPACE
