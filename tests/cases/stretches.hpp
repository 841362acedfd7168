// SPDX-License-Identifier: Apache-2.0
// A call in pieces: its keys in stretches of random lengths, and a part of its queries and heads as a call of
// its own.
#pragma once
#include <algorithm>
#include <utility>

#include "cases/random_call.hpp"
#include "heed/stream.hpp"

namespace heed::cases {

inline StreamInputs stream_inputs(const Call& call) {
  return {.q = call.q.view(),
          .kv_heads = call.k.shape().heads,
          .value_dim = call.v.shape().dim,
          .keys = call.keys()};
}

// Rows [first, first + count) of a view.
inline View rows_of(View x, std::int64_t first, std::int64_t count) {
  const std::int64_t bytes = x.dtype == DType::f32 ? 4 : 2;
  x.data = static_cast<const std::byte*>(x.data) + (count > 0 ? first * x.stride.length * bytes : 0);
  x.shape.length = count;
  return x;
}

// Lengths around the edges of a chunk, short ones, long ones, and none.
inline std::int64_t random_length(Dice& dice) {
  return dice.pick<std::int64_t>({0, 1, dice.between(1, 40), dice.between(200, 300), dice.between(1000, 1100),
                                  1024, 2048, dice.between(1, 2500)});
}

// Every stretch lies in memory of its own that is gone when the next comes.
inline void feed(KeyStream& keys, const Call& call, Dice& dice) {
  for (std::int64_t first = 0; first < call.keys() || dice.one_in(4);) {
    const std::int64_t count = std::min(random_length(dice), call.keys() - first);
    const Tensor k = call.k.rows(first, count), v = call.v.rows(first, count);
    keys.add(k.view(), v.view());
    first += count;
  }
}

// Queries and heads of a call as one of their own.
struct CallPart {
  Call call;
  heed::Place place;
};

// The part's heads and rows of a result of the whole call.
inline Tensor part_of(const Tensor& whole, const CallPart& part) {
  Shape s = whole.shape();
  s.length = part.call.queries(), s.heads = part.call.heads();
  Tensor made(s, whole.dtype());
  for_each(s, [&](auto b, auto h, auto i, auto d) {
    made.set(b, h, i, d, whole.at(b, h + part.place.first_head, i + part.place.first_query, d));
  });
  return made;
}

// Of a bias, which may broadcast either.
inline Tensor bias_of(const Tensor& whole, const CallPart& part) {
  Shape s = whole.shape();
  const std::int64_t row = s.length > 1 ? part.place.first_query : 0,
                     head = s.heads > 1 ? part.place.first_head : 0;
  if (s.length > 1) s.length = part.call.queries();
  if (s.heads > 1) s.heads = part.call.heads();
  Tensor made(s, whole.dtype());
  for_each(s,
           [&](auto b, auto h, auto i, auto d) { made.set(b, h, i, d, whole.at(b, h + head, i + row, d)); });
  return made;
}

inline BoolTensor part_of(const BoolTensor& whole, const CallPart& part) {
  Shape s = whole.shape;
  if (s.length > 1) s.length = part.call.queries();
  if (s.heads > 1) s.heads = part.call.heads();
  BoolTensor made(s);
  for_each(s, [&](auto b, auto h, auto i, auto j) {
    made.at(b, h, i, j) = whole.seen(b, h + part.place.first_head, i + part.place.first_query, j);
  });
  return made;
}

inline Tensor heads_of(const Tensor& whole, std::int64_t first, std::int64_t count) {
  Shape s = whole.shape();
  s.heads = count;
  Tensor made(s, whole.dtype());
  for_each(s, [&](auto b, auto h, auto i, auto d) { made.set(b, h, i, d, whole.at(b, h + first, i, d)); });
  return made;
}

// Queries [first_query, first_query + queries) and the query heads of KV heads [first, first + kv_heads).
// Tiled heads are not neighbours of those they share KV heads with, and stay together.
inline CallPart part_of(const Call& call, std::int64_t first_query, std::int64_t queries, std::int64_t first,
                        std::int64_t kv_heads) {
  const std::int64_t group = call.heads() / call.k.shape().heads, first_head = first * group;
  CallPart part{call, {first_query, call.queries(), first_head, call.heads()}};
  part.call.q = heads_of(call.q, first_head, kv_heads * group).rows(first_query, queries);
  part.call.k = heads_of(call.k, first, kv_heads);
  part.call.v = heads_of(call.v, first, kv_heads);
  if (call.bias) part.call.bias = bias_of(*call.bias, part);
  if (call.sink && call.sink->shape().heads > 1)
    part.call.sink = heads_of(*call.sink, first_head, kv_heads * group);
  for (BoolMatrix& m : part.call.matrices) m.where = part_of(m.where, part);
  if (call.alibi) part.call.alibi = call.alibi->some(first_head, kv_heads * group, call.heads());
  return part;
}

inline CallPart random_part(const Call& call, Dice& dice) {
  const std::int64_t first_query = dice.between(0, call.queries()),
                     queries = dice.between(0, call.queries() - first_query);
  const bool whole_heads = call.head_map == HeadMap::tiled;
  const std::int64_t first = whole_heads ? 0 : dice.between(0, call.k.shape().heads - 1),
                     kv_heads =
                         whole_heads ? call.k.shape().heads : dice.between(1, call.k.shape().heads - first);
  return part_of(call, first_query, queries, first, kv_heads);
}

}  // namespace heed::cases
