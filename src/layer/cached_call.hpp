// SPDX-License-Identifier: Apache-2.0
// A call of the layer over a cache: which sequences grow, and everything that is refused before they do.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "heed/cache.hpp"
#include "heed/layer.hpp"

namespace heed::layer {

// One per batch entry: its number in the cache, the tokens it held when the call began, and those it gets.
struct GrowingSequences {
  std::vector<std::int64_t> numbers{}, lengths{}, counts{}, lengths_after{};

  std::int64_t longest_after() const;
  std::vector<std::int64_t> next_positions(std::int64_t tokens) const;  // (batch, tokens)
};

// Arguments that go with a cache only, or with none.
void check_companions(const AttentionLayer::Call&, const Options&);

// The cache against the completed configuration. x must have been checked.
GrowingSequences check_cache(const LayerConfig&, const AttentionLayer::Call&);

}  // namespace heed::layer
