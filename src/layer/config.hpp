// SPDX-License-Identifier: Apache-2.0
// A layer's configuration with every default filled in, and the extents that follow from it.
#pragma once
#include <cstdint>

#include "heed/layer.hpp"

namespace heed::layer {

// Fills in every default, or throws Error: afterwards no optional but rotary is empty, and every product of
// two extents fits an int64.
LayerConfig complete(const LayerConfig&);

// Widths of a completed configuration's projections.
inline std::int64_t query_width(const LayerConfig& c) { return c.heads * *c.head_dim; }
inline std::int64_t key_width(const LayerConfig& c) { return *c.kv_heads * *c.head_dim; }
inline std::int64_t value_width(const LayerConfig& c) { return *c.kv_heads * *c.value_head_dim; }
inline std::int64_t merged_width(const LayerConfig& c) { return c.heads * *c.value_head_dim; }

}  // namespace heed::layer
