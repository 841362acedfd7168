// SPDX-License-Identifier: Apache-2.0
// Sequences while something reads them: their tables and pages stay as they are, and calls that would change
// one of them are refused.
#pragma once
#include "cache/layout.hpp"
#include "heed/cache.hpp"
#include "heed/few.hpp"

namespace heed::cache {

using SequenceNumbers = Few<std::int64_t, 4>;

class CacheReading {
 public:
  // Throws Error::busy while another call changes one of them; `call` begins the sentence.
  CacheReading(const KvCache&, SequenceNumbers, const char* call = "attention");
  static CacheReading of_all(const KvCache&, const char* call);  // that are in use
  CacheReading(const CacheReading&);                             // one more reader
  ~CacheReading();
  CacheReading& operator=(const CacheReading&) = delete;

  const SequenceNumbers& numbers() const { return numbers_; }
  std::int64_t sequences() const { return sequences_; }  // of the cache, when this began
  PagedSequence sequence(std::int64_t n) const;          // of a number that is read

  // What KvCache::read() does.
  void read(std::int64_t n, const MutableView& k, const MutableView& v) const;

 private:
  explicit CacheReading(const State& state) : state_(state) {}
  void begin(SequenceNumbers&&, const char* call);  // under the lock

  const State& state_;
  SequenceNumbers numbers_{};
  std::int64_t sequences_ = 0;
};

const PageLayout& layout_of(const KvCache&);

}  // namespace heed::cache
