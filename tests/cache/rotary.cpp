// SPDX-License-Identifier: Apache-2.0
// Keys turned when they are appended or when they are read are the same keys (S15).
#include <gtest/gtest.h>

#include "tokens.hpp"

namespace heed::test {
namespace {

KvCacheConfig config_of(CacheType type, CacheRotary rotary) {
  return {.batch = 2,
          .kv_heads = 2,
          .capacity = 300,
          .dim = 12,
          .value_dim = 5,
          .type = type,
          .page_size = 16,
          .window = CacheWindow{.length = 100, .front = 20},
          .rotary = rotary};
}

TEST(RotaryInCaches, append_and_read_give_the_same_bits) {
  Random random(11);
  const DType given[] = {DType::f32, DType::f16, DType::bf16};
  for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::bf16})
    for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::adjacent}) {
      const Rotary rotary{.base = 100, .dims = 8, .pairs = pairs};
      KvCache early(config_of(type, {rotary, CacheRotary::When::append}));
      KvCache late(config_of(type, {rotary, CacheRotary::When::read}));
      for (int i = 0; i < 25; ++i) {
        const std::int64_t tokens = draw(random, 1, 11);
        const Tokens k = Tokens::random(random, {2, 2, tokens, 12}, given[static_cast<int>(type)]);
        const Tokens v = Tokens::random(random, {2, 2, tokens, 5}, given[static_cast<int>(type)]);
        const std::vector<std::int64_t> counts{tokens, draw(random, 0, tokens)};
        early.append(k.view(), v.view(), counts);
        late.append(k.view(), v.view(), counts);
      }
      for (std::int64_t n = 0; n < 2; ++n) EXPECT_EQ(read(early, n), read(late, n)) << name_of(type) << n;
    }
}

TEST(RotaryInCaches, sequences_of_one_append_go_by_lengths_of_their_own) {
  const Rotary rotary{.scaling = DynamicScaling{.factor = 2, .original_length = 20}};
  for (const CacheRotary::When when : {CacheRotary::When::append, CacheRotary::When::read}) {
    KvCache together(config_of(CacheType::f32, {rotary, when})), apart(together.config());
    Random random(5);
    for (KvCache* cache : {&together, &apart}) append_marked(*cache, 1, 30, 1);
    const Tokens k = Tokens::random(random, {2, 2, 9, 12}), v = Tokens::random(random, {2, 2, 9, 5});
    const auto entry = [](const Tokens& both, std::int64_t b) {
      Tokens one({1, both.shape().heads, both.shape().length, both.shape().dim});
      one.fill([&](const Shape& at) { return both.get({b, at.heads, at.length, at.dim}); });
      return one;
    };
    together.append(k.view(), v.view());
    for (const std::int64_t b : {0, 1}) apart.append_to(b, entry(k, b).view(), entry(v, b).view());
    EXPECT_EQ(Seen(together), Seen(apart));
  }
}

TEST(RotaryInCaches, keys_turn_by_their_position_and_values_do_not) {
  KvCache cache(config_of(CacheType::f32, {}));
  Random random(3);
  const Tokens k = Tokens::random(random, {1, 2, 40, 12}), v = Tokens::random(random, {1, 2, 40, 5});
  append_marked(cache, 0, 7, 1);
  cache.append_to(0, k.view(), v.view());
  Tokens turned = k;
  std::vector<std::int64_t> positions(40);
  for (std::size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<std::int64_t>(t) + 7;
  rotate(turned.mutable_view(), positions);
  const Contents found = read(cache, 0);
  int wrong = 0;
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t d = 0; d < 12; ++d)
        wrong += found.k[static_cast<std::size_t>((h * 47 + 7 + t) * 12 + d)] != turned.get({0, h, t, d});
      for (std::int64_t d = 0; d < 5; ++d)
        wrong += found.v[static_cast<std::size_t>((h * 47 + 7 + t) * 5 + d)] != v.get({0, h, t, d});
    }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace heed::test
