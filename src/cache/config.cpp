// SPDX-License-Identifier: Apache-2.0
// KvCacheConfig: its defaults, and what is refused.
#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>

#include "cache/state.hpp"
#include "refusal/refusal.hpp"
#include "rotary/check.hpp"

namespace heed::cache {
namespace {

constexpr std::int64_t max_entries = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t max_tokens = std::int64_t{1} << 60;
constexpr std::int64_t max_bytes =
    std::min<std::int64_t>(max_tokens, std::numeric_limits<std::ptrdiff_t>::max());

void check_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    throw refusal(Error::value, "config.", name, ": ", value, " is not in [", least, ", ", most, "]");
}

bool fits(std::int64_t most, std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product) || product > most) return false;
  return true;
}

void check_pages(const KvCacheConfig& c) {
  const std::int64_t page_size = *c.page_size;
  const bool is_contiguous = page_size == PageLayout::whole(c.capacity, PageLayout::tile);
  if (!is_contiguous && (page_size < PageLayout::tile || !std::has_single_bit(std::uint64_t(page_size))))
    throw refusal(Error::value, "config.page_size: ", page_size, " is not a power of two of at least ",
                  PageLayout::tile);
  // More than any page takes: elements of 4 bytes, two scales, and parts rounded up to lines of 64 bytes.
  const std::int64_t max_per_token = 4 * (c.dim + *c.value_dim + 64);
  if (!fits(max_bytes, {page_size, c.kv_heads, max_per_token, *c.pages + 1}))
    throw refusal(Error::capacity, "config.pages: ", *c.pages, " pages of ", page_size,
                  " tokens are beyond any memory");
}

void check_choices(const KvCacheConfig& c) {
  if (c.type > CacheType::int8)
    throw refusal(Error::value, "config.type: ", static_cast<std::int64_t>(c.type),
                  " is none of f32, f16, bf16, int8");
  if (c.window) {
    check_range("window.length", c.window->length, 1, max_tokens);
    check_range("window.front", c.window->front, 0, max_tokens);
  }
  if (c.device > Device::cuda) throw unknown_device("config", c.device);
  if (!c.rotary) return;
  rotary::check_rotary(c.rotary->rotary, c.dim, "config.rotary");
  if (c.rotary->when > CacheRotary::When::read)
    throw refusal(Error::value, "config.rotary.when: ", static_cast<std::int64_t>(c.rotary->when),
                  " is none of append, read");
}

PageLayout layout_of(const KvCacheConfig& c) {
  const bool is_quantized = c.type == CacheType::int8;
  const std::int64_t bytes = is_quantized ? 1 : c.type == CacheType::f32 ? 4 : 2;
  return {.page_size = *c.page_size,
          .kv_heads = c.kv_heads,
          .dim = c.dim,
          .value_dim = *c.value_dim,
          .element_bytes = bytes,
          .is_quantized = is_quantized};
}

}  // namespace

KvCacheConfig complete(const KvCacheConfig& config) {
  KvCacheConfig c = config;
  check_range("batch", c.batch, 0, max_entries);
  check_range("kv_heads", c.kv_heads, 1, max_entries);
  check_range("capacity", c.capacity, 1, max_tokens);
  check_range("dim", c.dim, 1, max_entries);
  if (!c.value_dim) c.value_dim = c.dim;
  check_range("value_dim", *c.value_dim, 1, max_entries);
  if (!c.page_size) c.page_size = PageLayout::whole(c.capacity, PageLayout::tile);
  check_range("page_size", *c.page_size, 1, 2 * max_tokens);
  if (!c.pages) {
    if (c.batch == 0)
      throw refusal(Error::value,
                    "config.pages: must be given, since config.batch is 0 and says nothing of how many");
    const std::int64_t per_sequence = (c.capacity - 1) / *c.page_size + 1;
    c.pages = fits(max_tokens, {c.batch, per_sequence}) ? c.batch * per_sequence : max_tokens;
  }
  check_range("pages", *c.pages, 1, max_entries);
  check_choices(c);
  check_pages(c);
  return c;
}

CacheGeometry::CacheGeometry(const KvCacheConfig& complete_config)
    : config(complete_config), layout(layout_of(complete_config)) {}

}  // namespace heed::cache
