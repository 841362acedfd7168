// SPDX-License-Identifier: Apache-2.0
// The calls of KvCache that change or count sequences. Each begins by saying what it is about to do to the
// cache, and is refused if that cannot be now.
#include "heed/cache.hpp"

#include <algorithm>

#include "cache/state.hpp"
#include "cache/tokens.hpp"
#include "refusal/refusal.hpp"

namespace heed::inline v0_2 {
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

}  // namespace heed::inline v0_2
