// SPDX-License-Identifier: Apache-2.0
// Where a cache lies: copies on the same device, and devices that are not there.
#include <gtest/gtest.h>

#include "tokens.hpp"

namespace heed::test {
namespace {

KvCacheConfig cache_of(CacheType type) {
  return {.batch = 2, .kv_heads = 2, .capacity = 64, .dim = 6, .type = type, .page_size = 16, .pages = 12};
}

void grow(KvCache& cache, std::int64_t sequence, std::int64_t count, float from) {
  Tokens tokens({1, 2, count, 6});
  tokens.fill(
      [&](const Shape& at) { return from + static_cast<float>(at.heads * 100 + at.length * 10 + at.dim); });
  cache.append_to(sequence, tokens.view(), tokens.view());
}

TEST(Devices, a_copy_of_a_cache_has_its_sequences_and_goes_its_own_way) {
  for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::bf16, CacheType::int8}) {
    KvCache cache(cache_of(type));
    grow(cache, 0, 21, 1), grow(cache, 1, 3, 2);
    const std::int64_t fork = cache.fork(0);
    KvCache copy = cache.to(Device::cpu);
    EXPECT_EQ(copy.lengths(), cache.lengths());
    EXPECT_EQ(copy.pages_in_use(), cache.pages_in_use());
    const Contents before = read(cache, 0);
    grow(copy, 0, 2, 7), grow(copy, 1, 30, 8);
    copy.release(fork);
    EXPECT_EQ(read(cache, 0).k, before.k);
    EXPECT_EQ(read(cache, fork).v, before.v);
    EXPECT_EQ(cache.length(1), 3);
    grow(cache, 0, 2, 7);
    EXPECT_EQ(read(copy, 0).k, read(cache, 0).k);
    EXPECT_EQ(read(copy, 0).v, read(cache, 0).v);
  }
}

TEST(Devices, a_copy_keeps_what_its_window_released) {
  KvCacheConfig config = cache_of(CacheType::f32);
  config.window = CacheWindow{.length = 8, .front = 2};
  KvCache cache(config);
  for (int n = 0; n < 6; ++n) grow(cache, 0, 10, static_cast<float>(n));
  KvCache copy = cache.to(Device::cpu);
  EXPECT_EQ(read(copy, 0).k, read(cache, 0).k);
  EXPECT_EQ(copy.pages_in_use(), cache.pages_in_use());
}

TEST(Devices, a_copy_may_have_more_pages_and_no_fewer_than_have_been_used) {
  KvCache cache(cache_of(CacheType::int8));
  grow(cache, 0, 21, 1);
  const std::int64_t used = cache.pages_in_use(), pages = *cache.config().pages;
  KvCache larger = cache.to(Device::cpu, 3 * pages);
  EXPECT_EQ(*larger.config().pages, 3 * pages);
  EXPECT_EQ(read(larger, 0).k, read(cache, 0).k);
  EXPECT_EQ(cache.to(Device::cpu, used).pages_in_use(), used);
  EXPECT_THROW(cache.to(Device::cpu, used - 1), Error);
}

std::string why_not(const KvCacheConfig& config) {
  try {
    KvCache{config};
    return "taken";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Devices, a_device_that_is_not_there_is_refused) {
  KvCacheConfig config = cache_of(CacheType::f32);
  config.device = static_cast<Device>(7);
  EXPECT_EQ(why_not(config), "config.device: 7 is none of cpu, cuda");
  config.device = Device::cuda;
  EXPECT_EQ(why_not(config).rfind("config.device: cuda, but ", 0), 0u) << why_not(config);
  config.rotary = CacheRotary{};
  EXPECT_EQ(why_not(config).rfind("config.device: cuda, but ", 0), 0u) << why_not(config);
}

}  // namespace
}  // namespace heed::test
