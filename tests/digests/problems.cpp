// SPDX-License-Identifier: Apache-2.0
#include "digests/problems.hpp"

#include <limits>
#include <utility>

namespace heed::digests {
namespace {

using cases::BoolTensor;
using cases::Call;
using cases::for_each;
using cases::Tensor;

constexpr float infinity = std::numeric_limits<float>::infinity(),
                nan = std::numeric_limits<float>::quiet_NaN();

struct Extents {
  std::int64_t batch = 1, heads = 2, kv_heads = 1, queries = 3, keys = 40, dim = 16, value_dim = 16;
};

Call plain(const Extents& e, std::uint64_t stream) {
  return {.q = Tensor::random({e.batch, e.heads, e.queries, e.dim}, stream, 4),
          .k = Tensor::random({e.batch, e.kv_heads, e.keys, e.dim}, stream + 1, 2),
          .v = Tensor::random({e.batch, e.kv_heads, e.keys, e.value_dim}, stream + 2, 2)};
}

std::string number(std::int64_t n) { return std::to_string(n); }

void add_dims(std::vector<Problem>& all) {
  const std::pair<std::int64_t, std::int64_t> dims[] = {{1, 1},     {3, 5},     {8, 8},    {17, 31},
                                                        {32, 32},   {64, 64},   {80, 80},  {96, 33},
                                                        {128, 128}, {200, 129}, {256, 256}};
  for (const auto& [dim, value_dim] : dims)
    for (const std::int64_t queries : {2, 19})
      all.push_back({"dim-" + number(dim) + "-" + number(value_dim) + "-queries-" + number(queries),
                     plain({.queries = queries, .keys = 37, .dim = dim, .value_dim = value_dim}, 100),
                     queries > 2});
}

// Around the edges of tiles (8), blocks (256) and chunks (1024).
void add_lengths(std::vector<Problem>& all) {
  for (const std::int64_t keys : {0, 1, 7, 8, 9, 255, 256, 257, 1023, 1024, 1025, 2100, 3300})
    all.push_back(
        {"keys-" + number(keys), plain({.keys = keys, .dim = 24, .value_dim = 12}, 200), keys == 1025});
  for (const std::int64_t queries : {1, 13, 24, 49, 97})
    all.push_back(
        {"queries-" + number(queries), plain({.queries = queries, .keys = 270}, 300), queries == 13});
  Call rising = plain({.keys = 2100}, 350);  // so that the maximum moves in every block
  for_each(rising.k.shape(), [&](auto b, auto h, auto j, auto d) {
    rising.k.set(b, h, j, d, static_cast<float>(j) * 0x1p-9f * (rising.q.at(0, 0, 0, d) > 0 ? 1.0f : -1.0f));
  });
  all.push_back({"maximum-moves-in-every-block", rising});
}

void add_heads(std::vector<Problem>& all) {
  const std::pair<std::int64_t, std::int64_t> heads[] = {{4, 4}, {8, 2}, {8, 1}, {6, 3}};
  for (const auto& [q, kv] : heads)
    for (const HeadMap map : {HeadMap::interleaved, HeadMap::tiled}) {
      if (q == kv && map == HeadMap::tiled) continue;
      Problem p{"heads-" + number(q) + "-" + number(kv) + (map == HeadMap::tiled ? "-tiled" : ""),
                plain({.batch = 2, .heads = q, .kv_heads = kv, .queries = 2, .keys = 75}, 400)};
      p.call.head_map = map;
      all.push_back(p);
    }
}

BoolTensor pattern(Shape shape, std::uint64_t stream) {
  BoolTensor made(shape);
  std::uint64_t n = 0;
  for_each(shape, [&](auto b, auto h, auto i, auto j) {
    made.at(b, h, i, j) = cases::uniform(stream, n++) > -0.25f;
  });
  return made;
}

const char* const options[] = {"causal-starts", "causal-ends", "window",         "lengths",   "keep",
                               "hide",          "bias",        "bias-minus-inf", "softcap",   "sink",
                               "dropout",       "scale",       "no-key",         "documents", "alibi"};

void set_option(Call& call, const std::string& name) {
  const Shape full = call.score_shape();
  if (name == "causal-starts") call.causal = Causal{Align::starts};
  if (name == "causal-ends") call.causal = Causal{Align::ends};
  if (name == "window") call.window = Window{300, 20, Align::ends};
  if (name == "lengths") call.key_lengths = {{static_cast<std::int32_t>(full.dim - 3), 5}};
  if (name == "keep") call.matrices.push_back({pattern({1, full.heads, full.length, full.dim}, 51), false});
  if (name == "hide") call.matrices.push_back({pattern({full.batch, 1, 1, full.dim}, 52), true});
  if (name == "bias" || name == "bias-minus-inf")
    call.bias = Tensor::random({1, full.heads, full.length, full.dim}, 53, 4);
  if (name == "bias-minus-inf")
    for_each(call.bias->shape(), [&](auto b, auto h, auto i, auto j) {
      if (call.bias->at(b, h, i, j) < 1) call.bias->set(b, h, i, j, -infinity);
    });
  if (name == "softcap") call.softcap = 2.5f;
  if (name == "sink") call.sink = Tensor::random({1, full.heads, 1, 1}, 54, 4);
  if (name == "dropout") call.dropout = Dropout{0.25f, 0x0123456789abcdefu};
  if (name == "scale") call.scale = -0.375f;
  if (name == "documents") {
    call.documents = cases::Documents{.align = Align::ends};
    for (std::int64_t j = 0; j < full.dim; ++j)
      call.documents->ids.push_back(static_cast<std::int32_t>(j / 110));
  }
  if (name == "alibi") call.alibi = cases::Slopes{{0.5f, 0.25f, 0.03f, 0.001f}, Align::ends};
  if (name == "no-key") call.matrices.push_back({BoolTensor({1, 1, 1, 1}), false});
}

// Each option alone, for few rows and for many; then nearly all at once.
void add_options(std::vector<Problem>& all) {
  const Extents few{.batch = 2, .heads = 4, .kv_heads = 2, .queries = 3, .keys = 400};
  const Extents many{.batch = 2, .heads = 4, .kv_heads = 2, .queries = 29, .keys = 300};
  for (const char* name : options) {
    all.push_back({std::string(name) + "-few-rows", plain(few, 500)});
    all.push_back({std::string(name) + "-many-rows", plain(many, 600), true});
    set_option(all[all.size() - 2].call, name), set_option(all.back().call, name);
  }
  for (const std::int64_t queries : {2, 70}) {
    Problem p{
        "everything-queries-" + number(queries),
        plain({.batch = 2, .heads = 6, .kv_heads = 3, .queries = queries, .keys = 1300, .dim = 20}, 700)};
    for (const char* name : {"causal-ends", "lengths", "keep", "hide", "bias", "softcap", "sink", "dropout"})
      set_option(p.call, name);
    p.call.key_lengths = {{1290, 1030}};
    p.call.head_map = HeadMap::tiled;
    all.push_back(p);
  }
}

void add_extremes(std::vector<Problem>& all) {
  const Extents e{.queries = 5, .keys = 140};
  Problem large{"large-scores", plain(e, 800), true}, tiny{"subnormal-values", plain(e, 810)},
      unseen{"poison-in-unseen-keys", plain(e, 820), true},
      seen{"a-nan-that-some-rows-see", plain(e, 830), true};
  large.call.scale = 64.0f;
  for_each(tiny.call.v.shape(), [&](auto b, auto h, auto j, auto d) {
    tiny.call.v.set(b, h, j, d, tiny.call.v.at(b, h, j, d) * 0x1p-130f);
  });
  unseen.call.key_lengths = {{131}};
  for (const std::int64_t j : {131, 139})
    for (std::int64_t d = 0; d < e.dim; ++d)
      unseen.call.k.set(0, 0, j, d, nan), unseen.call.v.set(0, 0, j, d, infinity);
  seen.call.causal = Causal{Align::ends};
  seen.call.k.set(0, 0, 137, 3, nan), seen.call.v.set(0, 0, 138, 1, infinity);
  for (const Problem& p : {large, tiny, unseen, seen}) all.push_back(p);
  Problem only{"a-row-whose-one-key-is-nan", plain({.queries = 4, .keys = 4}, 840), true};
  only.call.causal = Causal{};
  only.call.k.set(0, 0, 0, 0, nan);
  all.push_back(only);
}

}  // namespace

std::vector<Problem> problems() {
  std::vector<Problem> all;
  add_dims(all);
  add_lengths(all);
  add_heads(all);
  add_options(all);
  add_extremes(all);
  return all;
}

cases::Call in_dtype(const cases::Call& call, DType dtype) {
  cases::Call made = call;
  for (Tensor Call::* operand : {&Call::q, &Call::k, &Call::v}) {
    Tensor narrow((call.*operand).shape(), dtype);
    for_each(narrow.shape(),
             [&](auto b, auto h, auto i, auto d) { narrow.set(b, h, i, d, (call.*operand).at(b, h, i, d)); });
    made.*operand = narrow;
  }
  return made;
}

}  // namespace heed::digests
