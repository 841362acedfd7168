// SPDX-License-Identifier: Apache-2.0
#include "cache/reading.hpp"

#include "cache/state.hpp"

namespace heed::cache {

CacheReading::CacheReading(const KvCache& cache) : state_(Access::state(cache)) {
  state_.use.begin_reading("attention");
}

CacheReading::CacheReading(const CacheReading& other) noexcept : state_(other.state_) {
  state_.use.read_on();
}

CacheReading::~CacheReading() { state_.use.end_reading(); }

const PageLayout& CacheReading::layout() const { return state_.layout; }

std::int64_t CacheReading::sequences() const { return std::ssize(state_.sequences); }

PagedSequence CacheReading::sequence(std::int64_t n) const {
  const CachedSequence& sequence = state_.at(n);
  return {sequence.table.data(), sequence.length};
}

}  // namespace heed::cache
