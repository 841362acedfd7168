// SPDX-License-Identifier: Apache-2.0
// A cache's tiles of sixteen keys, values or scales, one after another.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Goes from tile to tile and from page to page: to divide a key by the page size for every tile would cost
// some cycles of every key.
class TileWalk {
 public:
  // From the tile that begins with this key.
  static TileWalk of_keys(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t key) {
    return {c, b, key, kv_head * c.layout.head_bytes(), c.dim * c.layout.element_bytes};
  }
  static TileWalk of_values(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t key) {
    return {c, b, key, kv_head * c.layout.head_bytes() + c.layout.values_at(),
            c.layout.value_width() * c.layout.element_bytes};
  }
  static TileWalk of_key_scales(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t key) {
    return {c, b, key, kv_head * c.layout.head_bytes() + c.layout.key_scales_at(), sizeof(float)};
  }

  const unsigned char* place() const { return *page_ + offset_ + within_ * token_bytes_; }
  void step() {
    within_ += PageLayout::tile;
    if (within_ == page_size_) ++page_, within_ = 0;  // fault: walk-stays-on-its-page
  }

 private:
  TileWalk(const Call& c, std::int64_t b, std::int64_t key, std::int64_t offset, std::int64_t token_bytes)
      : page_(c.cached[b].table + key / c.layout.page_size),
        within_(key % c.layout.page_size),
        page_size_(c.layout.page_size),
        offset_(offset),
        token_bytes_(token_bytes) {}

  const unsigned char* const* page_;
  std::int64_t within_, page_size_, offset_, token_bytes_;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
