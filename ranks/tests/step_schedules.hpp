// SPDX-License-Identifier: Apache-2.0
// A random step over random caches, and the same over caches that are spread over ranks.
#pragma once
#include <gtest/gtest.h>

#include "cases/compare.hpp"
#include "cases/random_call.hpp"
#include "cases/stretches.hpp"
#include "heed/cache.hpp"
#include "heed/distributed.hpp"

namespace heed::cases {

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

struct StepRows {
  Tensor out, log_sum_exp;
  explicit StepRows(const Decoding& d)
      : out(d.q.shape()), log_sum_exp({d.q.shape().batch, d.q.shape().heads, d.q.shape().length, 1}) {
    out.fill_bytes(0xff);
  }
  Outputs outputs() { return {.out = out.mutable_view(), .log_sum_exp = log_sum_exp.mutable_view()}; }
};

inline StepRows by_one_process(const Decoding& d) {
  KvCache cache(d.config);
  for (std::int64_t b = 0; b < d.config.batch; ++b)
    cache.append_to(b, d.k[static_cast<std::size_t>(b)].view(), d.v[static_cast<std::size_t>(b)].view());
  StepRows rows(d);
  attention({.q = d.q.view(), .cache = &cache}, rows.outputs(), d.options);
  return rows;
}

// Every token goes to the rank whose it is, in appends of random lengths.
inline StepRows by_ranks(Group& group, const Decoding& d, std::uint64_t seed) {
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
  StepRows rows(d);
  attention(group, d.q.view(), {.cache = &cache, .lengths = d.lengths}, rows.outputs(), d.options);
  return rows;
}

// On this rank, which has all results.
inline testing::AssertionResult step_has_the_bits_of_one_process(Group& group, std::uint64_t seed) {
  const Decoding d(seed);
  const StepRows expected = by_one_process(d), found = by_ranks(group, d, seed);
  testing::AssertionResult same = same_bits(found.out, expected.out);
  if (same) same = same_bits(found.log_sum_exp, expected.log_sum_exp);
  return same << " on rank " << group.rank() << " of " << group.size() << ", seed " << seed;
}

}  // namespace heed::cases
