// SPDX-License-Identifier: Apache-2.0
// A random call and a random way to spread it over ranks, the same on every rank that draws it from the same
// seed.
#pragma once
#include <algorithm>
#include <string>

#include "cases/compare.hpp"
#include "cases/random_call.hpp"
#include "cases/stretches.hpp"
#include "heed/distributed.hpp"

namespace heed::cases {

// Stretches of any lengths, empty ones too, dealt to ranks in any order.
inline std::vector<std::vector<Stretch>> dealt(std::int64_t length, int ranks, Dice& dice) {
  std::vector<std::vector<Stretch>> of_rank(static_cast<std::size_t>(ranks));
  for (std::int64_t first = 0; first < length;) {
    const std::int64_t count =
        std::min(length - first, dice.one_in(3) ? dice.between(1, length) : dice.between(1, length / 3 + 1));
    of_rank[static_cast<std::size_t>(dice.between(0, ranks - 1))].push_back({first, count});
    first += count;
  }
  for (auto& stretches : of_rank)
    if (dice.one_in(4)) stretches.push_back({0, 0});
  return of_rank;
}

inline Split uneven(const WholeCall& whole, int ranks, Dice& dice) {
  Split split{whole, std::vector<Share>(static_cast<std::size_t>(ranks))};
  const auto queries = dealt(whole.queries, ranks, dice), keys = dealt(whole.keys, ranks, dice);
  for (std::size_t r = 0; r < split.of_rank.size(); ++r)
    split.of_rank[r] = {queries[r], keys[r], 0, whole.kv_heads};
  return split;
}

inline Split random_split(const Call& call, int ranks, Dice& dice) {
  const WholeCall whole{call.queries(), call.keys(), call.heads(), call.k.shape().heads};
  if (dice.one_in(2)) return uneven(whole, ranks, dice);
  if (call.head_map == HeadMap::tiled || dice.one_in(3)) return split_sequence(whole, ranks);
  if (dice.one_in(2)) return split_heads(whole, ranks);
  return split_grid(whole, ranks, ranks % 2 == 0 ? 2 : 1);
}

// Rows of the stretches, one after another, of KV heads [first, first + count) times `group`.
inline Tensor share_of(const Tensor& whole, const std::vector<Stretch>& stretches, std::int64_t first_head,
                       std::int64_t heads) {
  Shape s = whole.shape();
  s.length = 0, s.heads = heads;
  for (const Stretch& one : stretches) s.length += one.length;
  Tensor made(s, whole.dtype());
  std::int64_t row = 0;
  for (const Stretch& one : stretches)
    for (std::int64_t i = 0; i < one.length; ++i, ++row)
      for_each({s.batch, s.heads, 1, s.dim}, [&](auto b, auto h, auto, auto d) {
        made.set(b, h, row, d, whole.at(b, h + first_head, one.first + i, d));
      });
  return made;
}

// What a rank is called with.
inline Call call_of(const Call& whole, const Share& share) {
  const std::int64_t group = whole.heads() / whole.k.shape().heads, first = share.first_kv_head * group,
                     heads = share.kv_heads * group;
  Call call = whole;
  call.q = share_of(whole.q, share.queries, first, heads);
  call.k = share_of(whole.k, share.keys, share.first_kv_head, share.kv_heads);
  call.v = share_of(whole.v, share.keys, share.first_kv_head, share.kv_heads);
  const auto cut = [&](const Shape& s) {
    return std::pair(s.length > 1 ? share.queries : std::vector<Stretch>{{0, 1}},
                     s.heads > 1 ? std::pair(first, heads) : std::pair(std::int64_t{0}, std::int64_t{1}));
  };
  if (whole.bias) {
    const auto [rows, range] = cut(whole.bias->shape());
    call.bias = share_of(*whole.bias, rows, range.first, range.second);
  }
  if (whole.sink && whole.sink->shape().heads > 1) call.sink = heads_of(*whole.sink, first, heads);
  if (whole.alibi) call.alibi = whole.alibi->some(first, heads, whole.heads());
  for (BoolMatrix& m : call.matrices) {
    const auto of_mask = cut(m.where.shape);
    const std::vector<Stretch>& rows = of_mask.first;
    const auto& range = of_mask.second;
    Shape s = m.where.shape;
    s.heads = range.second, s.length = 0;
    for (const Stretch& one : rows) s.length += one.length;
    BoolTensor made(s);
    std::int64_t row = 0;
    for (const Stretch& one : rows)
      for (std::int64_t i = 0; i < one.length; ++i, ++row)
        for_each({s.batch, s.heads, 1, s.dim}, [&](auto b, auto h, auto, auto j) {
          made.at(b, h, row, j) = m.where.seen(b, h + range.first, one.first + i, j);
        });
    m.where = made;
  }
  return call;
}

// One schedule: the call, its split over the group, and whether this rank's rows have the bits of one
// process.
inline Call schedule_call(std::uint64_t seed) {
  return random_call(seed, {.max_queries = 60,
                            .max_keys = 1600,
                            .max_batch = 2,
                            .long_keys = false,
                            .dropout = true,
                            .no_dims = true});
}

inline testing::AssertionResult has_the_bits_of_one_process(Group& group, std::uint64_t seed) {
  const Call whole = schedule_call(seed);
  Dice dice(seed);
  const Split split = random_split(whole, group.size(), dice);
  const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
  const Call call = call_of(whole, share);
  Results results(call, {.log_sum_exp = true});
  attention(group, split, call.inputs(), results.outputs(), call.options());
  const Results expected = run(whole, {.log_sum_exp = true});
  const std::int64_t of_group = whole.heads() / whole.k.shape().heads, first = share.first_kv_head * of_group,
                     heads = share.kv_heads * of_group;
  auto result = same_bits(results.out, share_of(expected.out, share.queries, first, heads));
  if (result)
    result = same_bits(*results.log_sum_exp, share_of(*expected.log_sum_exp, share.queries, first, heads));
  return result << " on rank " << group.rank() << " of " << group.size() << ", seed " << seed << ": "
                << describe(whole);
}

}  // namespace heed::cases
