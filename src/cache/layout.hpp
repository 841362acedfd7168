// SPDX-License-Identifier: Apache-2.0
// How a page holds its tokens: the only definition of the packed layout. Plain data without the standard
// library's inline code, because kernels of every instruction set include it; always inlined, so that no copy
// for a wide instruction set is left to the linker, as g++ 13 did.
//
// A page is one part per KV head, so a head's keys are read as one stream:
//   keys    tiles of 16 tokens, each (dim, 16): a dimension's 16 tokens lie side by side
//   values  tiles of 16 tokens, each (value_dim / 16, 16 tokens, 16 dims), value_dim rounded up to 16
//   scales  int8 only: f32, one per token for the keys, then one per token for the values
// Every part begins on a 64-byte line; page_size is a multiple of 16.
#pragma once
#include <cstdint>

#include "heed/dtype.hpp"

namespace heed::cache {

struct PageLayout {
  static constexpr std::int64_t tile = 16;  // tokens, and dimensions of values: one line of f32

  std::int64_t page_size, kv_heads, dim, value_dim;
  std::int64_t element_bytes;  // 4, 2, 1
  bool is_quantized;           // elements are int8 with scales

  [[gnu::always_inline]] static constexpr std::int64_t whole(std::int64_t n, std::int64_t unit) {
    return (n + unit - 1) / unit * unit;
  }
  [[gnu::always_inline]] constexpr std::int64_t value_width() const { return whole(value_dim, tile); }

  // Bytes from the beginning of a head's part.
  [[gnu::always_inline]] constexpr std::int64_t values_at() const {
    return whole(page_size * dim * element_bytes, 64);
  }
  [[gnu::always_inline]] constexpr std::int64_t key_scales_at() const {
    return values_at() + whole(page_size * value_width() * element_bytes, 64);
  }
  [[gnu::always_inline]] constexpr std::int64_t value_scales_at() const {
    return key_scales_at() + (is_quantized ? whole(page_size * 4, 64) : 0);
  }
  [[gnu::always_inline]] constexpr std::int64_t head_bytes() const {
    return value_scales_at() + (is_quantized ? whole(page_size * 4, 64) : 0);
  }
  [[gnu::always_inline]] constexpr std::int64_t page_bytes() const { return kv_heads * head_bytes(); }

  // Elements from the beginning of a head's keys, or values, for token t of the page.
  [[gnu::always_inline]] constexpr std::int64_t key_element(std::int64_t t, std::int64_t d) const {
    return (t / tile * dim + d) * tile + t % tile;
  }
  [[gnu::always_inline]] constexpr std::int64_t value_element(std::int64_t t, std::int64_t d) const {
    return ((t / tile * (value_width() / tile) + d / tile) * tile + t % tile) * tile + d % tile;
  }
};

// A sequence as kernels read it: token t lies in page table[t / page_size]. Pages that the window released
// point to one page of zeros.
struct PagedSequence {
  const unsigned char* const* table;
  std::int64_t length;
};

enum class Side : std::uint8_t { keys, values };

// Tokens [first, first + count) of a page are tokens t, t + 1 ... of batch entry b of a view.
struct TokenRun {
  const unsigned char* page;
  std::int64_t first, count, b, t;
};

}  // namespace heed::cache

namespace heed {
using cache::PagedSequence, cache::PageLayout;
}
