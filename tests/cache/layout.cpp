// SPDX-License-Identifier: Apache-2.0
// Kernels find each element where layout.hpp says, and the padding of values holds zeros.
#include <gtest/gtest.h>

#include <bit>

#include "cache/reading.hpp"
#include "tokens.hpp"

namespace heed::test {
namespace {

template <class T>
T element(const unsigned char* part, std::int64_t bytes, std::int64_t index) {
  T x;
  std::memcpy(&x, part + bytes + index * static_cast<std::int64_t>(sizeof(T)), sizeof x);
  return x;
}

float as_float(CacheType type, const unsigned char* part, std::int64_t at, std::int64_t index) {
  switch (type) {
    case CacheType::f32:
      return element<float>(part, at, index);
    case CacheType::f16:
      return to_float(element<f16>(part, at, index));
    case CacheType::bf16:
      return to_float(element<bf16>(part, at, index));
    case CacheType::int8:
      return static_cast<float>(element<std::int8_t>(part, at, index));
  }
  return 0;
}

TEST(Layout, tokens_lie_where_it_says) {
  Random random(2);
  for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::bf16, CacheType::int8})
    for (const std::int64_t value_dim : {1, 16, 37}) {
      KvCache cache(
          {.kv_heads = 3, .capacity = 100, .dim = 21, .value_dim = value_dim, .type = type, .page_size = 32});
      const std::int64_t chunks[] = {1, 30, 5, 50};
      for (const std::int64_t tokens : chunks)
        cache.append_to(0, Tokens::random(random, {1, 3, tokens, 21}).view(),
                        Tokens::random(random, {1, 3, tokens, value_dim}).view());
      const Contents expected = read(cache, 0);
      const cache::CacheReading reading(cache, {0});
      const PageLayout& layout = cache::layout_of(cache);
      const PagedSequence sequence = reading.sequence(0);
      int wrong = 0;
      for (std::int64_t h = 0; h < 3; ++h)
        for (std::int64_t t = 0; t < sequence.length; ++t) {
          const unsigned char* part = sequence.table[t / 32] + h * layout.head_bytes();
          const bool is_int8 = type == CacheType::int8;
          const float key_scale = is_int8 ? element<float>(part, layout.key_scales_at(), t % 32) : 1;
          const float value_scale = is_int8 ? element<float>(part, layout.value_scales_at(), t % 32) : 1;
          for (std::int64_t d = 0; d < 21; ++d)
            wrong += key_scale * as_float(type, part, 0, layout.key_element(t % 32, d)) !=
                     expected.k[static_cast<std::size_t>((h * sequence.length + t) * 21 + d)];
          for (std::int64_t d = 0; d < layout.value_width(); ++d)
            wrong +=
                value_scale * as_float(type, part, layout.values_at(), layout.value_element(t % 32, d)) !=
                (d < value_dim
                     ? expected.v[static_cast<std::size_t>((h * sequence.length + t) * value_dim + d)]
                     : 0.0f);
        }
      EXPECT_EQ(wrong, 0) << name_of(type) << ", value_dim " << value_dim;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(sequence.table[0]) % 64, 0u);
      EXPECT_EQ(layout.head_bytes() % 64, 0);
    }
}

// Every sign, exponent and leading mantissa, with the bits below at, just under and just over halfway.
TEST(Layout, what_is_held_is_rounded_as_half_hpp_says) {
  const std::uint32_t below[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000, 0x8001, 0xffff};
  for (const CacheType type : {CacheType::f16, CacheType::bf16}) {
    const std::int64_t dim = 1 << 16;
    KvCache cache({.kv_heads = 1, .capacity = 16, .dim = dim, .type = type});
    Tokens x({1, 1, 10, dim});
    x.fill([&](const Shape& at) {
      return std::bit_cast<float>(static_cast<std::uint32_t>(at.dim) << 16 | below[at.length]);
    });
    cache.append_to(0, x.view(), x.view());
    const Contents found = read(cache, 0);
    int wrong = 0;
    for (std::size_t i = 0; i < found.k.size(); ++i) {
      const auto n = static_cast<std::int64_t>(i);
      const float given = x.get({0, 0, n / dim, n % dim});
      const float expected =
          type == CacheType::f16 ? to_float(from_float<f16>(given)) : to_float(from_float<bf16>(given));
      for (const float held : {found.k[i], found.v[i]})
        wrong += std::bit_cast<std::uint32_t>(held) != std::bit_cast<std::uint32_t>(expected);
    }
    EXPECT_EQ(wrong, 0) << name_of(type);
  }
}

TEST(Layout, any_type_of_result_is_rounded_once_from_what_is_held) {
  Random random(4);
  KvCache cache({.kv_heads = 2, .capacity = 20, .dim = 7});
  cache.append_to(0, Tokens::random(random, {1, 2, 20, 7}).view(),
                  Tokens::random(random, {1, 2, 20, 7}).view());
  const Contents expected = read(cache, 0);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Shape shape{1, 2, 20, 7};
    Tokens k(shape, dtype, bshd(shape)), v(shape, dtype, bshd(shape)), rounded(shape, dtype);
    cache.read(0, k.mutable_view(), v.mutable_view());
    rounded.fill([&](const Shape& at) {
      return expected.k[static_cast<std::size_t>((at.heads * 20 + at.length) * 7 + at.dim)];
    });
    int wrong = 0;
    rounded.fill([&](const Shape& at) {
      wrong += k.get(at) != rounded.get(at);
      return 0.0f;
    });
    EXPECT_EQ(wrong, 0) << name_of(dtype);
  }
}

}  // namespace
}  // namespace heed::test
