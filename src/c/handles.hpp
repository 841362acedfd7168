// SPDX-License-Identifier: Apache-2.0
// What the opaque pointers of c.h point to.
#pragma once
#include <cstdint>

#include "heed/c.h"
#include "heed/cache.hpp"
#include "heed/layer.hpp"

struct heed_cache {
  heed::KvCache cache;
};

struct heed_layer {
  heed::AttentionLayer layer;
  std::int64_t sliding_window;  // 0: none
  heed_rotary rotary;           // the layer's own, where it has one
};
