// SPDX-License-Identifier: Apache-2.0
// The choices heed.KvCache is made with: from Python's words to KvCacheConfig, and back.
#pragma once
#include <string>

#include "heed/cache.hpp"
#include "refusal.hpp"

namespace heed::python {

// All but the four extents, which every cache must be given.
Device read_device(nb::handle object);
KvCacheConfig read_cache_options(const nb::kwargs& keywords);

const char* word_for(CacheType type);  // as NumPy and PyTorch call it
std::string in_words(const KvCacheConfig& config);

}  // namespace heed::python
