// SPDX-License-Identifier: Apache-2.0
// A random problem from one seed: shapes around every tile edge, any mask, bias and option. The seed
// reproduces it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cases/call.hpp"

namespace heed::cases {

// What a law cannot do with.
struct Limits {
  std::int64_t max_queries = 40, max_keys = 140;
  std::int64_t max_batch = 3;
  bool long_keys =
      true;  // one problem in eight has few queries and keys by the thousand: beyond any chunk of keys
  bool masks = true, bias = true, sink = true, dropout = false, softcap = true;
  bool halves = true;    // f16 and bf16 too
  bool no_dims = false;  // one in eight has heads of no dimensions
};

inline BoolTensor random_bools(Dice& dice, Shape shape, std::int64_t one_false_in) {
  BoolTensor made(shape);
  for_each(shape, [&](auto b, auto h, auto i, auto j) { made.at(b, h, i, j) = !dice.one_in(one_false_in); });
  return made;
}

inline Shape broadcast_some(Dice& dice, Shape s) {
  if (dice.one_in(2)) s.batch = 1;
  if (dice.one_in(2)) s.heads = 1;
  if (dice.one_in(3)) s.length = 1;
  if (dice.one_in(8)) s.dim = 1;
  return s;
}

// Documents one after another, of any lengths; now and then with numbers that say nothing about the order.
inline std::vector<std::int32_t> random_ids(Dice& dice, std::int64_t rows, std::int64_t tokens) {
  std::vector<std::int32_t> ids;
  const bool is_sorted = !dice.one_in(3);
  const std::int64_t longest = tokens > 500 ? 900 : 30;
  for (std::int64_t row = 0; row < rows; ++row) {
    auto id = static_cast<std::int32_t>(dice.between(-2, 2));
    for (std::int64_t left = 0, n = 0; n < tokens; ++n, --left) {
      if (left == 0) {
        left = dice.between(1, longest);
        id = is_sorted
                 ? id + 1
                 : static_cast<std::int32_t>(dice.pick<std::int64_t>({-0x80000000L, -1, 0, 0x7fffffffL}));
      }
      ids.push_back(id);
    }
  }
  return ids;
}

inline Documents random_documents(Dice& dice, const Shape& scores) {
  Documents made{.ids = random_ids(dice, dice.one_in(2) ? 1 : scores.batch, scores.dim)};
  if (dice.one_in(3) && scores.dim > 0) {
    const std::int64_t rows = dice.one_in(2) ? 1 : scores.batch;
    for (std::int64_t n = 0; n < rows * scores.length; ++n)
      made.query_ids.push_back(made.ids[static_cast<std::size_t>(dice.between(0, std::ssize(made.ids) - 1))]);
  } else {
    made.align = dice.one_in(2) ? Align::ends : Align::starts;
  }
  return made;
}

inline void add_random_masks(Dice& dice, Call& call) {
  const Shape full = call.score_shape();
  const Align align = dice.one_in(2) ? Align::ends : Align::starts;
  if (dice.one_in(3)) call.causal = Causal{align};
  if (dice.one_in(4)) {
    call.window = Window{dice.between(0, full.dim > 1000 ? 1500 : 20), dice.between(0, 5), align};
    if (dice.one_in(3)) call.window->front = dice.between(0, full.dim > 1000 ? 1100 : 9);
  }
  if (dice.one_in(4)) {
    call.key_lengths.emplace();
    for (std::int64_t b = 0; b < full.batch; ++b)
      call.key_lengths->push_back(static_cast<std::int32_t>(dice.between(0, full.dim)));
  }
  if (dice.one_in(5)) call.matrices.push_back({random_bools(dice, broadcast_some(dice, full), 3), false});
  if (dice.one_in(5)) call.matrices.push_back({random_bools(dice, broadcast_some(dice, full), 2), true});
}

inline void add_random_bias(Dice& dice, Call& call, std::uint64_t stream) {
  const DType dtype = dice.one_in(2) ? DType::f32 : call.q.dtype();
  call.bias = Tensor::random(broadcast_some(dice, call.score_shape()), stream, 2, dtype);
  if (!dice.one_in(2)) return;
  for_each(call.bias->shape(), [&](auto b, auto h, auto i, auto j) {
    if (dice.one_in(4)) call.bias->set(b, h, i, j, -std::numeric_limits<float>::infinity());
  });
}

inline Call random_call(std::uint64_t seed, const Limits& limits = {}) {
  Dice dice(seed);
  const std::int64_t batch = dice.between(1, limits.max_batch), kv_heads = dice.between(1, 3);
  const std::int64_t heads = kv_heads * dice.between(1, 3);
  const bool is_long = limits.long_keys && dice.one_in(8);
  const std::int64_t keys = is_long          ? dice.between(1000, 2200)
                            : dice.one_in(6) ? dice.between(0, 2)
                                             : dice.between(1, limits.max_keys);
  const std::int64_t queries = is_long          ? dice.between(1, 4)
                               : dice.one_in(6) ? 1
                                                : dice.between(1, limits.max_queries);
  std::int64_t dim = is_long ? 8 : dice.pick<std::int64_t>({1, 3, 8, 16, 31, 64, 80});
  const std::int64_t value_dim = dice.one_in(3) ? dice.pick<std::int64_t>({1, 5, 16, 33}) : dim;
  if (Dice own(seed ^ 0xD1Au); limits.no_dims && own.one_in(8)) dim = 0;
  const DType dtype =
      limits.halves && dice.one_in(2) ? dice.pick<DType>({DType::f16, DType::bf16}) : DType::f32;
  Call call{.q = Tensor::random({batch, heads, queries, dim}, 3 * seed, 4, dtype),
            .k = Tensor::random({batch, kv_heads, keys, dim}, 3 * seed + 1, 2, dtype),
            .v = Tensor::random({batch, kv_heads, keys, value_dim}, 3 * seed + 2, 2, dtype)};
  if (limits.masks) add_random_masks(dice, call);
  if (Dice own(seed ^ 0xD0Cu); limits.masks && own.one_in(4))
    call.documents = random_documents(own, call.score_shape());
  if (limits.bias && dice.one_in(3)) add_random_bias(dice, call, seed ^ 0xB1A5u);
  if (Dice own(seed ^ 0xA11B1u); limits.bias && own.one_in(4)) {
    call.alibi = Slopes{.align = own.one_in(2) ? Align::ends : Align::starts};
    const std::int64_t entries = own.one_in(3) ? batch : 1;
    for (std::int64_t n = 0; n < entries * heads; ++n)
      call.alibi->of_heads.push_back(own.pick<float>({0.5f, 0.0390625f, 0.1f, 2.0f, -0.003f, 0.0f}));
  }
  if (limits.sink && dice.one_in(4))
    call.sink =
        Tensor::random({dice.one_in(2) ? 1 : batch, dice.one_in(2) ? 1 : heads, 1, 1}, seed ^ 0x51Du, 4);
  if (limits.softcap && dice.one_in(4)) call.softcap = dice.pick<float>({0.5f, 5.0f, 30.0f});
  if (dice.one_in(4)) call.scale = dice.pick<float>({0.125f, 1.0f, -0.5f, 0.0f});
  if (limits.dropout && dice.one_in(2))
    call.dropout = Dropout{dice.pick<float>({0.1f, 0.5f, 0.9f}), dice.bits()};
  if (dice.one_in(3)) call.head_map = HeadMap::tiled;
  if (dice.one_in(3)) call.out_dtype = DType::f32;
  return call;
}

inline std::string describe(const Call& c) {
  auto shape = [](const Tensor& t) {
    return std::to_string(t.shape().heads) + "x" + std::to_string(t.shape().length) + "x" +
           std::to_string(t.shape().dim);
  };
  std::string s = std::string(heed::name_of(c.q.dtype())) + " batch " + std::to_string(c.batch()) + ", q " +
                  shape(c.q) + ", k " + shape(c.k) + ", v " + shape(c.v);
  if (c.causal) s += c.causal->align == Align::ends ? ", causal ends" : ", causal";
  if (c.window)
    s += ", window " + std::to_string(c.window->left) + "," + std::to_string(c.window->right) + " front " +
         std::to_string(c.window->front);
  if (c.key_lengths) s += ", lengths";
  if (c.documents) s += c.documents->query_ids.empty() ? ", documents" : ", documents of queries and keys";
  for (const BoolMatrix& m : c.matrices) s += m.hides ? ", hide" : ", keep";
  if (c.bias) s += ", bias";
  if (c.alibi) s += std::ssize(c.alibi->of_heads) > c.heads() ? ", alibi of each entry" : ", alibi";
  if (c.sink) s += ", sink";
  if (c.softcap) s += ", softcap " + std::to_string(*c.softcap);
  if (c.scale) s += ", scale " + std::to_string(*c.scale);
  if (c.dropout) s += ", dropout " + std::to_string(c.dropout->drop_probability);
  if (c.head_map == HeadMap::tiled) s += ", tiled";
  return s;
}

}  // namespace heed::cases
