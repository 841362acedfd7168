// SPDX-License-Identifier: Apache-2.0
#include "cases/lattice.hpp"

#include <array>
#include <functional>
#include <limits>
#include <vector>

#include "cases/adversarial.hpp"
#include "cases/random_call.hpp"

namespace heed::cases {
namespace {

constexpr std::array<DType, 4> dtypes{DType::f32, DType::f16, DType::bf16, DType::f64};
constexpr std::int64_t random_problems = 110;

struct Extents {
  std::int64_t batch = 1, heads = 2, kv_heads = 1, queries = 5, keys = 9, dim = 16, value_dim = 16;
};

Call plain(const Extents& e, std::uint64_t stream, DType dtype) {
  return {.q = Tensor::random({e.batch, e.heads, e.queries, e.dim}, stream, 4, dtype),
          .k = Tensor::random({e.batch, e.kv_heads, e.keys, e.dim}, stream + 1, 2, dtype),
          .v = Tensor::random({e.batch, e.kv_heads, e.keys, e.value_dim}, stream + 2, 2, dtype)};
}

using Make = std::function<Case(DType)>;

// Head dims around every vector width, with and without d_v = d_k.
void add_dims(std::vector<Make>& all) {
  for (std::int64_t dim : {1, 3, 7, 8, 16, 31, 32, 64, 65, 80, 96, 128, 256})
    for (std::int64_t value_dim : {dim, dim == 16 ? std::int64_t{129} : std::int64_t{17}})
      all.push_back([=](DType dtype) {
        return Case{"dim " + std::to_string(dim) + ", value dim " + std::to_string(value_dim),
                    plain({.queries = 13, .keys = 33, .dim = dim, .value_dim = value_dim}, 1000, dtype),
                    {.weights = true, .log_sum_exp = true}};
      });
}

// Heads of no dimensions: every score is 0 (S1), and masks, biases and sinks are as ever.
void add_no_dims(std::vector<Make>& all) {
  for (std::int64_t queries : {1, 13, 70})
    for (std::int64_t keys : {0, 1, 33, 1100})
      for (int way = 0; way < 4; ++way)
        all.push_back([=](DType dtype) {
          Case c{
              "no dims, " + std::to_string(queries) + " queries, " + std::to_string(keys) + " keys, way " +
                  std::to_string(way),
              plain({.batch = 2, .queries = queries, .keys = keys, .dim = 0, .value_dim = 17}, 6000, dtype),
              {.weights = true, .log_sum_exp = true}};
          if (way == 1) c.call.causal = Causal{Align::ends};
          if (way == 2) c.call.bias = Tensor::random(c.call.score_shape(), 6003, 4);
          if (way == 3) c.call.scale = -3.0f, c.call.softcap = 5.0f, c.wants = {.scores = Stage::raw};
          return c;
        });
}

// Lengths around every tile edge, as keys, as queries and as both, without and with a causal mask; and for
// one query.
void add_lengths(std::vector<Make>& all) {
  for (std::int64_t n : {0,  1,   2,   7,   8,   9,   11,  12,   13,   31,   63,   64,
                         65, 127, 128, 255, 256, 257, 300, 1024, 1025, 1100, 2049, 2100})
    for (int way = 0; way < 5; ++way)
      all.push_back([=](DType dtype) {
        Extents e{.heads = 2, .dim = 8, .value_dim = 8};
        if (way != 1) e.keys = n;
        if (way == 1 || way == 3) e.queries = n > 300 ? 40 : n;
        if (way == 0) e.queries = n > 300 ? 3 : 6;
        if (way == 4) e.queries = 1, e.heads = 6, e.kv_heads = 2;
        Case c{"length " + std::to_string(n) + ", way " + std::to_string(way),
               plain(e, 2000, dtype),
               {.log_sum_exp = true}};
        if (way == 2) c.call.causal = Causal{Align::ends};
        if (way == 3) c.call.causal = Causal{Align::starts};
        return c;
      });
}

void add_heads(std::vector<Make>& all) {
  struct Heads {
    std::int64_t heads, kv_heads;
  };
  for (Heads h : {Heads{1, 1}, Heads{3, 3}, Heads{4, 2}, Heads{6, 2}, Heads{7, 1}, Heads{8, 4}, Heads{12, 6},
                  Heads{5, 5}})
    for (HeadMap map : {HeadMap::interleaved, HeadMap::tiled})
      all.push_back([=](DType dtype) {
        Case c{std::to_string(h.heads) + " heads, " + std::to_string(h.kv_heads) + " kv heads",
               plain({.batch = 2, .heads = h.heads, .kv_heads = h.kv_heads, .queries = 7, .keys = 20}, 3000,
                     dtype),
               {.weights = true}};
        c.call.head_map = map;
        return c;
      });
}

// Each mask alone and every pair of them.
void set_mask(Call& call, int which, Dice& dice) {
  const Shape full = call.score_shape();
  if (which == 0) call.causal = Causal{Align::starts};
  if (which == 1) call.causal = Causal{Align::ends};
  if (which == 2) call.window = Window{9, 0, Align::ends};
  if (which == 3) call.window = Window{4, 70, Align::starts};
  if (which == 4) call.key_lengths = {{static_cast<std::int32_t>(full.dim), 65}};
  if (which == 5) call.matrices.push_back({random_bools(dice, {1, 1, full.length, full.dim}, 3), false});
  if (which == 6) call.matrices.push_back({random_bools(dice, {full.batch, 1, 1, full.dim}, 2), true});
  if (which == 8) call.documents = Documents{random_ids(dice, full.batch, full.dim), {}, Align::ends};
  if (which == 9) call.alibi = Slopes{{0.5f, 0.25f, 0.125f, 0.01f}, Align::ends};
  if (which != 7) return;
  call.bias = Tensor::random({1, full.heads, full.length, full.dim}, 7, 4);
  for_each(call.bias->shape(), [&](auto b, auto h, auto i, auto j) {
    if (dice.one_in(3)) call.bias->set(b, h, i, j, -std::numeric_limits<float>::infinity());
  });
}

void add_masks(std::vector<Make>& all) {
  for (int a = 0; a < 10; ++a)
    for (int b = a; b < 10; ++b)
      all.push_back([=](DType dtype) {
        Case c{"masks " + std::to_string(a) + " and " + std::to_string(b),
               plain({.batch = 2, .heads = 4, .kv_heads = 2, .queries = 19, .keys = 131}, 4000, dtype),
               {.weights = true, .log_sum_exp = true}};
        Dice dice(static_cast<std::uint64_t>(a * 10 + b));
        set_mask(c.call, a, dice);
        if (b != a) set_mask(c.call, b, dice);
        return c;
      });
}

// A bias may broadcast along any axes, and comes in f32 or in the dtype of q.
void add_biases(std::vector<Make>& all) {
  for (unsigned broadcast = 0; broadcast < 16; ++broadcast)
    all.push_back([=](DType dtype) {
      Case c{"bias broadcast " + std::to_string(broadcast),
             plain({.batch = 2, .heads = 2, .kv_heads = 2, .queries = 9, .keys = 37}, 5000, dtype),
             {.weights = true}};
      Shape s = c.call.score_shape();
      if ((broadcast & 1) != 0) s.batch = 1;
      if ((broadcast & 2) != 0) s.heads = 1;
      if ((broadcast & 4) != 0) s.length = 1;
      if ((broadcast & 8) != 0) s.dim = 1;
      c.call.bias = Tensor::random(s, 5003, 4, broadcast % 3 == 0 ? dtype : DType::f32);
      return c;
    });
}

void add_random(std::vector<Make>& all) {
  for (std::int64_t n = 0; n < random_problems; ++n)
    all.push_back([=](DType dtype) {
      const auto seed = static_cast<std::uint64_t>(60000 + n);
      Call call = random_call(seed, {.max_queries = 45, .max_keys = 290, .dropout = true, .halves = false});
      auto as = [&](const Tensor& t, std::uint64_t stream) {
        return Tensor::random(t.shape(), stream, 3, dtype);
      };
      call.q = as(call.q, seed), call.k = as(call.k, seed + 1000), call.v = as(call.v, seed + 2000);
      Dice dice(seed);
      Wants wants{dice.one_in(2), dice.one_in(2), {}};
      if (dice.one_in(3)) wants.scores = dice.pick<Stage>({Stage::raw, Stage::softcapped, Stage::biased});
      return Case{"random: " + describe(call), call, wants};
    });
}

const std::vector<Make>& table() {
  static const std::vector<Make> all = [] {
    std::vector<Make> made;
    add_dims(made);
    add_lengths(made);
    add_heads(made);
    add_masks(made);
    add_biases(made);
    for (int n = 0; n < adversarial_count; ++n)
      made.push_back([n](DType dtype) {
        auto [name, call] = adversarial(n, dtype);
        return Case{name, call, {.weights = true, .log_sum_exp = true}};
      });
    add_random(made);
    add_no_dims(made);
    return made;
  }();
  return all;
}

}  // namespace

std::int64_t case_count() { return static_cast<std::int64_t>(table().size() * dtypes.size()); }

Case make_case(std::int64_t number) {
  const auto n = static_cast<std::size_t>(number);
  const DType dtype = dtypes[n % dtypes.size()];
  Case made = table().at(n / dtypes.size())(dtype);
  made.name += std::string(" (") + heed::name_of(dtype) + ")";
  return made;
}

bool in_small_selection(std::int64_t number) {
  return number % 9 == 0;
}  // 9 and 4 are coprime: every dtype stays

}  // namespace heed::cases
