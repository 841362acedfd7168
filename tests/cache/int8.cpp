// SPDX-License-Identifier: Apache-2.0
// The stated bound of int8, on rows made to break it, and what it refuses.
#include <gtest/gtest.h>

#include <functional>

#include "cache/reading.hpp"
#include "tokens.hpp"

namespace heed::test {
namespace {

constexpr float largest_float = std::numeric_limits<float>::max(),
                smallest_float = std::numeric_limits<float>::denorm_min(),
                infinity = std::numeric_limits<float>::infinity();

KvCacheConfig config_of(std::int64_t dim) {
  return {.kv_heads = 1, .capacity = 64, .dim = dim, .type = CacheType::int8, .page_size = 16};
}

// Elements of the row that are not within half a scale, and what docs/cache.md adds to it, of what was given.
int beyond_bound(const std::vector<float>& row) {
  const auto dim = static_cast<std::int64_t>(row.size());
  KvCache cache(config_of(dim));
  Tokens tokens({1, 1, 1, dim});
  tokens.fill([&](const Shape& at) { return row[static_cast<std::size_t>(at.dim)]; });
  cache.append_to(0, tokens.view(), tokens.view());
  const Contents found = read(cache, 0);
  double largest = 0;
  for (const float x : row) largest = std::max(largest, std::fabs(static_cast<double>(x)));
  const double bound = largest / 127 / 2 + largest * 0x1p-23 + 0x1p-143;
  int beyond = 0;
  for (std::size_t d = 0; d < row.size(); ++d)
    for (const float x : {found.k[d], found.v[d]})
      if (!(std::fabs(static_cast<double>(x) - static_cast<double>(row[d])) <= bound)) ++beyond;
  return beyond;
}

TEST(Int8, the_bound_holds_on_adversarial_rows) {
  EXPECT_EQ(beyond_bound(std::vector<float>(40, 0.0f)), 0) << "zeros";
  EXPECT_EQ(beyond_bound(std::vector<float>(40, -3.7f)), 0) << "all equal";
  std::vector<float> outlier(40, 1e-3f);
  outlier[17] = 1e6f;
  EXPECT_EQ(beyond_bound(outlier), 0) << "one outlier";
  EXPECT_EQ(beyond_bound({largest_float, -largest_float, 1, 0}), 0) << "the largest floats";
  for (int n = 1; n <= 400; ++n) {
    const float x = smallest_float * static_cast<float>(n);
    EXPECT_EQ(beyond_bound({x, -x, x / 2, 0, x / 3}), 0) << "denormals, " << n;
  }
  for (int e = -140; e <= 120; ++e) {
    std::vector<float> halves;
    for (int i = -127; i <= 127; ++i) halves.push_back(std::ldexp(static_cast<float>(i) + 0.5f, e));
    EXPECT_EQ(beyond_bound(halves), 0) << "halfway between steps, 2^" << e;
  }
}

TEST(Int8, the_bound_holds_on_random_rows) {
  Random random(5);
  int beyond = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<float> row(static_cast<std::size_t>(draw(random, 1, 33)));
    for (float& x : row)
      x = std::ldexp(static_cast<float>(draw(random, -1 << 24, 1 << 24)),
                     static_cast<int>(draw(random, -170, 100)));
    beyond += beyond_bound(row);
  }
  EXPECT_EQ(beyond, 0);
}

TEST(Int8, ties_go_to_the_even_step) {
  KvCache cache(config_of(6));
  Tokens tokens({1, 1, 1, 6});
  const std::vector<float> row{127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f}, expected{127, 0, 2, 2, 0, -2};
  tokens.fill([&](const Shape& at) { return row[static_cast<std::size_t>(at.dim)]; });
  cache.append_to(0, tokens.view(), tokens.view());
  const Contents found = read(cache, 0);
  EXPECT_EQ(found.k, expected);
  EXPECT_EQ(found.v, expected);
}

TEST(Int8, what_is_not_finite_is_refused_by_name) {
  for (const float bad : {infinity, -infinity, std::nanf("")})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      KvCacheConfig config = config_of(20);
      config.batch = 2;
      config.kv_heads = 3;
      KvCache cache(config);
      append_marked(cache, 1, 17, 3);
      const Seen before(cache);
      Random random(1);
      Tokens good = Tokens::random(random, {2, 3, 5, 20}, dtype), broken = good;
      broken.set({1, 2, 4, 19}, bad);
      EXPECT_EQ(refusal_of([&] { cache.append(broken.view(), good.view()); }),
                "value: k: token 4 of head 2 for sequence 1 is not finite; an int8 cache holds finite "
                "numbers only");
      EXPECT_EQ(refusal_of([&] { cache.append(good.view(), broken.view()); }),
                "value: v: token 4 of head 2 for sequence 1 is not finite; an int8 cache holds finite "
                "numbers only");
      EXPECT_EQ(Seen(cache), before);
      const std::vector<std::int64_t> counts{5, 4};
      cache.append(broken.view(), good.view(), counts);
      EXPECT_EQ(cache.length(1), 21) << "beyond the counts nothing is looked at";
    }
}

TEST(Int8, a_turn_that_overflows_is_refused) {
  KvCacheConfig config = config_of(2);
  config.rotary.emplace();
  KvCache cache(config);
  append_marked(cache, 0, 1, 1);
  Tokens tokens({1, 1, 1, 2});
  tokens.fill([](const Shape& at) { return at.dim == 0 ? largest_float : -largest_float; });
  EXPECT_EQ(
      refusal_of([&] { cache.append_to(0, tokens.view(), tokens.view()); }),
      "value: k: token 0 of head 0 for sequence 0 is not finite; an int8 cache holds finite numbers only");
  EXPECT_EQ(cache.length(0), 1);
}

TEST(Int8, other_types_hold_what_is_not_finite) {
  for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::bf16}) {
    KvCache cache({.kv_heads = 1, .capacity = 64, .dim = 2, .type = type});
    append_marked(cache, 0, 1, infinity);
    append_marked(cache, 0, 1, std::nanf(""));
    EXPECT_EQ(marks(cache, 0)[0], infinity);
    EXPECT_TRUE(std::isnan(marks(cache, 0)[1]));
  }
}

}  // namespace
}  // namespace heed::test
