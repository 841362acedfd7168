// SPDX-License-Identifier: Apache-2.0
// Tokens on their way into a page and out of it: the only code that moves elements of the packed layout.
#pragma once
#include <cstdint>

#include "cache/layout.hpp"
#include "heed/cache.hpp"

namespace heed::cache {

// Tokens [first, first + count) of one KV head's part of a page.
struct Slots {
  const PageLayout* layout;
  CacheType type;
  const unsigned char* part;
  std::int64_t first, count;
};

// One head's tokens in the caller's memory, (count, dim).
struct Rows {
  const void* data;
  DType dtype;
  std::int64_t token_stride, dim_stride;
};

// Rounds once to the cache's type. Values are written up to the width their padding gives them, with zeros.
void store_tokens(const Slots&, Side, const Rows&) noexcept;

// The token slots.first as floats: dim or value_dim of them.
void fetch_token(const Slots&, Side, float* into) noexcept;

// The first `count` tokens of every head, and nothing else of the page.
void copy_tokens(const PageLayout&, const unsigned char* from, unsigned char* into,
                 std::int64_t count) noexcept;

struct RowsSize {
  std::int64_t tokens, dim;
};

void widen(const Rows&, RowsSize, float* into) noexcept;  // into is packed
// The first token with an element that is not a finite number, or -1.
std::int64_t find_token_not_finite(const Rows&, RowsSize) noexcept;

// int8: what its elements are multiples of.
float scale_for(float largest_magnitude) noexcept;

}  // namespace heed::cache
