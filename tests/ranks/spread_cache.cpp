// SPDX-License-Identifier: Apache-2.0
// Decode over caches that are spread over ranks has the bits of one cache with all tokens (O1).
#include <gtest/gtest.h>

#include "cases/compare.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "cases/stretches.hpp"
#include "heed/cache.hpp"
#include "heed/distributed.hpp"
#include "ranks/rank_threads.hpp"

namespace heed::cases {
namespace {

// Sequences of different lengths, and a few queries that are their last tokens.
struct Decoding {
  KvCacheConfig config{};
  std::vector<std::int64_t> lengths{};
  std::vector<Tensor> k{}, v{};  // of each sequence
  Tensor q{};
  Options options{};
  std::optional<Tensor> sink{};

  explicit Decoding(std::uint64_t seed) {
    Dice dice(seed);
    const std::int64_t batch = dice.between(1, 3), kv_heads = dice.between(1, 2),
                       heads = kv_heads * dice.between(1, 3), queries = dice.between(1, 4),
                       dim = dice.pick<std::int64_t>({8, 16, 33});
    config = {
        .batch = batch,
        .kv_heads = kv_heads,
        .capacity = 6000,
        .dim = dim,
        .type = dice.pick<CacheType>({CacheType::f32, CacheType::f16, CacheType::bf16, CacheType::int8}),
        .page_size = dice.pick<std::int64_t>({16, 64, 256, 1024})};
    for (std::int64_t b = 0; b < batch; ++b) {
      lengths.push_back(dice.one_in(3) ? dice.between(queries, 40) : dice.between(queries, 5000));
      k.push_back(
          Tensor::random({1, kv_heads, lengths.back(), dim}, seed + static_cast<std::uint64_t>(10 * b)));
      v.push_back(
          Tensor::random({1, kv_heads, lengths.back(), dim}, seed + static_cast<std::uint64_t>(10 * b + 1)));
    }
    q = Tensor::random({batch, heads, queries, dim}, seed + 5, 3,
                       dice.pick<DType>({DType::f32, DType::bf16}));
    if (dice.one_in(2)) options.masks.push_back(Causal{});
    if (dice.one_in(3)) options.masks.push_back(Window{dice.between(10, 3000), 0, {}, dice.between(0, 5)});
    if (dice.one_in(3)) options.softcap = 5.0f;
    if (dice.one_in(3)) options.dropout = Dropout{0.2f, seed};
    if (dice.one_in(3)) options.sink = sink.emplace(Tensor::random({1, heads, 1, 1}, seed + 7)).view();
  }
};

struct Rows {
  Tensor out, log_sum_exp;
  explicit Rows(const Decoding& d)
      : out(d.q.shape()), log_sum_exp({d.q.shape().batch, d.q.shape().heads, d.q.shape().length, 1}) {
    out.fill_bytes(0xff);
  }
  Outputs outputs() { return {.out = out.mutable_view(), .log_sum_exp = log_sum_exp.mutable_view()}; }
};

Rows by_one_process(const Decoding& d) {
  KvCache cache(d.config);
  for (std::int64_t b = 0; b < d.config.batch; ++b)
    cache.append_to(b, d.k[static_cast<std::size_t>(b)].view(), d.v[static_cast<std::size_t>(b)].view());
  Rows rows(d);
  attention({.q = d.q.view(), .cache = &cache}, rows.outputs(), d.options);
  return rows;
}

// Every token goes to the rank whose it is, in appends of random lengths.
Rows by_ranks(Group& group, const Decoding& d, std::uint64_t seed) {
  KvCache cache(d.config);
  Dice dice(seed);
  for (std::int64_t b = 0; b < d.config.batch; ++b) {
    const Tensor &k = d.k[static_cast<std::size_t>(b)], &v = d.v[static_cast<std::size_t>(b)];
    for (std::int64_t first = 0; first < k.shape().length;) {
      const std::int64_t count = std::min(random_length(dice), k.shape().length - first);
      append_own(cache, b, first, rows_of(k.view(), first, count), rows_of(v.view(), first, count),
                 group.rank(), group.size());
      first += count;
    }
  }
  Rows rows(d);
  attention(group, d.q.view(), {.cache = &cache, .lengths = d.lengths}, rows.outputs(), d.options);
  return rows;
}

TEST(SpreadCaches, give_the_bits_of_one_cache_on_every_rank) {
  for (const std::uint64_t seed : seeds(9500, 9600)) {
    const Decoding decoding(seed);
    const Rows expected = by_one_process(decoding);
    const auto said = on_ranks(group_of_threads(1 + static_cast<int>(seed % 8)), [&](Group& group) {
      const Rows rows = by_ranks(group, decoding, seed);
      EXPECT_TRUE(same_bits(rows.out, expected.out)) << "seed " << seed << ", rank " << group.rank();
      EXPECT_TRUE(same_bits(rows.log_sum_exp, expected.log_sum_exp))
          << "seed " << seed << ", rank " << group.rank();
    });
    for (const std::string& sentence : said) EXPECT_EQ(sentence, "") << "seed " << seed;
  }
}

TEST(SpreadCaches, have_every_token_once) {
  for (const std::int64_t length : {0, 1, 1023, 1024, 1025, 4096, 9999})
    for (const int ranks : {1, 2, 3, 7}) {
      std::int64_t all = 0;
      for (int rank = 0; rank < ranks; ++rank) all += own_tokens(length, rank, ranks);
      EXPECT_EQ(all, length);
    }
  EXPECT_EQ(own_tokens(5000, 0, 2), 1024 * 2 + 904);
}

TEST(SpreadCaches, name_what_they_refuse_on_every_rank) {
  const Tensor q = Tensor::random({1, 2, 1, 8}, 1), k = Tensor::random({1, 1, 30, 8}, 2);
  const auto sentence_of = [&](const KvCacheConfig& config, std::int64_t length) {
    const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
      KvCache cache(config);
      if (group.rank() == 0) cache.append_to(0, k.view(), k.view());
      Tensor out(q.shape());
      const std::vector<std::int64_t> lengths{length};
      attention(group, q.view(), {.cache = &cache, .lengths = lengths}, {.out = out.mutable_view()});
    });
    EXPECT_EQ(said[0], said[1]);
    return said[0];
  };
  const KvCacheConfig good{.kv_heads = 1, .capacity = 2048, .dim = 8, .page_size = 64};
  EXPECT_EQ(sentence_of(good, 30), "");
  EXPECT_EQ(sentence_of(good, 31),
            "rank 0 refuses: cache: sequence 0 has 30 tokens, and of 31 this rank's are 31");
  KvCacheConfig bad = good;
  bad.page_size = 2048;
  EXPECT_EQ(sentence_of(bad, 30),
            "rank 0 refuses: cache.page_size: 2048 is more than 1024, the tokens of a chunk");
  bad = good;
  bad.window = CacheWindow{10, 0};
  EXPECT_EQ(sentence_of(bad, 30), "rank 0 refuses: cache.window: given, but a part of a sequence has none");
}

}  // namespace
}  // namespace heed::cases
