// SPDX-License-Identifier: Apache-2.0
// A cache while something reads it: its pages stay where they are, and calls that would change it are
// refused.
#pragma once
#include "cache/layout.hpp"
#include "heed/cache.hpp"

namespace heed::cache {

class CacheReading {
 public:
  explicit CacheReading(const KvCache&);       // throws Error::value while another thread changes the cache
  CacheReading(const CacheReading&) noexcept;  // one more reader
  ~CacheReading();
  CacheReading& operator=(const CacheReading&) = delete;

  const PageLayout& layout() const;
  std::int64_t sequences() const;
  PagedSequence sequence(std::int64_t n) const;  // of a number that is in use

 private:
  const State& state_;
};

}  // namespace heed::cache
