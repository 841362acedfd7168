// SPDX-License-Identifier: Apache-2.0
// KvCache: its configuration, and the calls that make, fork, release and count sequences.
#include "heed/cache.hpp"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>

#include "cache/append.hpp"
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

}  // namespace heed::cache

// The calls of KvCache that change or count sequences. Each begins by saying what it is about to do to the
// cache, and is refused if that cannot be now.

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
  state_->sequences.reserve(static_cast<std::size_t>(state_->config.batch));
  for (std::int64_t b = 0; b < state_->config.batch; ++b) state_->add_sequence(usual_pages(*state_));
}

KvCache::KvCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

const KvCacheConfig& KvCache::config() const { return state_->config; }

std::int64_t KvCache::sequences() const {
  const Reading reading(state_->use, "sequences");
  return static_cast<std::int64_t>(state_->sequences.size());
}

std::int64_t KvCache::length(std::int64_t sequence) const {
  const Reading reading(state_->use, "length");
  return state_->at(sequence).length;
}

std::vector<std::optional<std::int64_t>> KvCache::lengths() const {
  const Reading reading(state_->use, "lengths");
  std::vector<std::optional<std::int64_t>> all;
  for (const CachedSequence& sequence : state_->sequences)
    all.push_back(sequence.is_released ? std::nullopt : std::optional(sequence.length));
  return all;
}

void KvCache::append(const View& k, const View& v, std::span<const std::int64_t> counts) {
  const Writing writing(state_->use, "append");
  const auto all = static_cast<std::int64_t>(state_->sequences.size());
  append_tokens(*state_, {k, v, 0, all, "the cache's sequences", counts});
}

void KvCache::append_to(std::int64_t sequence, const View& k, const View& v) {
  const Writing writing(state_->use, "append_to");
  state_->at(sequence);
  append_tokens(*state_, {k, v, sequence, 1, "the one sequence", {}});
}

void KvCache::truncate(std::int64_t sequence, std::int64_t length) {
  const Writing writing(state_->use, "truncate");
  state_->check_prefix(sequence, length);
  state_->shorten(state_->at(sequence), length);
}

void KvCache::reset(std::int64_t sequence) {
  const Writing writing(state_->use, "reset");
  state_->shorten(state_->at(sequence), 0);
}

void KvCache::reset() {
  const Writing writing(state_->use, "reset");
  for (CachedSequence& sequence : state_->sequences) state_->shorten(sequence, 0);
}

std::int64_t KvCache::fork(std::int64_t sequence, std::optional<std::int64_t> length) {
  const Writing writing(state_->use, "fork");
  const std::int64_t tokens = length ? *length : state_->at(sequence).length;
  state_->check_prefix(sequence, tokens);
  const std::int64_t pages = state_->pages_of(tokens);
  const std::int64_t number = state_->add_sequence(std::max(pages, usual_pages(*state_)));
  const CachedSequence& from = state_->at(sequence);
  CachedSequence& made = state_->at(number);
  made.table.assign(from.table.begin(), from.table.begin() + pages);
  state_->share_pages(made);
  made.length = tokens;
  made.held_from = pages > state_->front_pages() ? from.held_from : state_->front_pages();
  return number;
}

void KvCache::release(std::int64_t sequence) {
  const Writing writing(state_->use, "release");
  CachedSequence& released = state_->at(sequence);
  state_->shorten(released, 0);
  released.is_released = true;
  ++state_->released;
}

std::int64_t KvCache::add() {
  const Writing writing(state_->use, "add");
  return state_->add_sequence(usual_pages(*state_));
}

KvCache KvCache::to(Device device, std::optional<std::int64_t> pages) const {
  const Reading reading(state_->use, "to");
  KvCacheConfig config = state_->config;
  config.device = device;
  if (pages && *pages < state_->pool.ever_used())
    throw refusal(Error::capacity, "pages: ", *pages, " are fewer than the ", state_->pool.ever_used(),
                  " that have been used");
  if (pages) config.pages = pages;
  auto made = std::make_unique<State>(CacheGeometry(complete(config)));
  made->pool.copy(state_->pool);
  made->sequences = state_->sequences;
  made->released = state_->released;
  for (CachedSequence& sequence : made->sequences) {
    for (const unsigned char*& page : sequence.table)
      page = page == state_->pool.zeros() ? made->pool.zeros() : made->pool.at(state_->pool.number_of(page));
    sequence.table.reserve(static_cast<std::size_t>(usual_pages(*made)));
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
  const Reading reading(state_->use, "pages_in_use");
  return state_->pool.in_use();
}

}  // namespace HEED_NAMESPACE
