// SPDX-License-Identifier: Apache-2.0
// What make_problem() hands to the kernels, against the words of the specification: which keys each query
// sees (S4, S9, S10, S11, S17), and which element a broadcast bias or sink yields.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <memory>
#include <random>

#include "call/make_problem.hpp"
#include "cases/selection.hpp"
#include "refusals/call.hpp"

namespace heed {
namespace {

struct Cell {
  std::int64_t b, h, i, j;
};

std::int64_t at(const Strides& stride, const Cell& c) {
  return c.b * stride.batch + c.h * stride.heads + c.i * stride.length + c.j * stride.dim;
}

// The same element, found by the extents: an extent of 1 has one entry for all.
std::int64_t at_broadcast(const Shape& shape, const Strides& stride, const Cell& c) {
  return at(stride, {shape.batch == 1 ? 0 : c.b, shape.heads == 1 ? 0 : c.h, shape.length == 1 ? 0 : c.i,
                     shape.dim == 1 ? 0 : c.j});
}

// The position of query i among the keys, where `align` is said or the lengths are equal.
__extension__ using Wide = __int128;
Wide position(std::optional<Align> align, const Problem& p, std::int64_t i) {
  return align == Align::ends ? Wide{i} + p.keys - p.queries : Wide{i};
}

bool sees(const Mask& mask, const Problem& p, const Cell& c) {
  if (const auto* causal = std::get_if<Causal>(&mask)) return c.j <= position(causal->align, p, c.i);
  if (const auto* window = std::get_if<Window>(&mask)) {
    const Wide own = position(window->align, p, c.i);
    return (c.j >= own - window->left || c.j < window->front) && c.j <= own + window->right;
  }
  if (const auto* lengths = std::get_if<KeyLengths>(&mask))
    return c.j < lengths->valid[static_cast<std::size_t>(c.b)];
  if (const auto* keep = std::get_if<Keep>(&mask))
    return keep->where.data[at_broadcast(keep->where.shape, keep->where.stride, c)];
  if (const auto* tree = std::get_if<Tree>(&mask)) {
    const std::int64_t drafted = c.j - (p.keys - p.queries);
    return drafted < 0 ||
           tree->where.data[at_broadcast(tree->where.shape, tree->where.stride, {c.b, c.h, c.i, drafted})];
  }
  const BoolView& hidden = std::get<Hide>(mask).where;
  return !hidden.data[at_broadcast(hidden.shape, hidden.stride, c)];
}

bool lowered_sees(const Problem& p, const Cell& c) {
  const Sequence& s = p.sequences[static_cast<std::size_t>(c.b)];
  if (c.j >= p.front && c.j < c.i + s.first_offset) return false;
  if (c.j >= c.i + s.end_offset || c.j >= s.key_count) return false;
  for (std::size_t n = static_cast<std::size_t>(c.b); n < p.gaps.size(); n += p.sequences.size())
    if (c.j >= p.gaps[n].front && c.j < c.i + p.gaps[n].first_offset) return false;
  for (const BoolMask& mask : p.bool_masks) {
    const std::int64_t column = mask.is_tree ? c.j - (s.keys - s.queries) : c.j;
    if (column >= 0 && mask.data[at(mask.stride, {c.b, c.h, c.i, column})] != mask.visible_when) return false;
  }
  return true;
}

template <class Visit>
void for_each_cell(const Problem& p, const Visit& visit) {
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.queries; ++i)
        for (std::int64_t j = 0; j < p.keys; ++j) visit(Cell{b, h, i, j});
}

// Random masks over random lengths; owns what the masks view.
class RandomCall {
 public:
  explicit RandomCall(std::uint64_t seed) : random_(static_cast<std::uint32_t>(seed)) {
    const Shape q{pick(0, 3), pick(0, 3), pick(0, 6), 1};
    const std::int64_t keys = pick(0, 1) == 1 ? q.length : pick(0, 7);
    const Shape k{q.batch, q.heads, keys, 1};
    scores_ = {q.batch, q.heads, q.length, keys};
    inputs = {.q = view(q), .k = view(k), .v = view(k)};
    outputs.out = {floats(q), q};
    for (std::int64_t masks = pick(0, 4); masks > 0; --masks) options.masks.push_back(random_mask());
    if (pick(0, 1) == 1) options.bias = view(broadcast_shape());
    if (pick(0, 1) == 1)
      options.sink = view({pick(0, 1) == 1 ? q.batch : 1, pick(0, 1) == 1 ? q.heads : 1, 1, 1});
  }

  Inputs inputs{};
  Outputs outputs{};
  Options options{};

 private:
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  float* floats(const Shape& shape) {
    auto& values = floats_.emplace_back(static_cast<std::size_t>(shape.elements()) + 1);
    for (float& value : values) value = static_cast<float>(pick(0, 1 << 20));
    return values.data();
  }
  View view(const Shape& shape) { return {floats(shape), shape}; }
  Shape broadcast_shape() {
    Shape shape = scores_;
    for (std::int64_t* extent : {&shape.batch, &shape.heads, &shape.length, &shape.dim})
      if (pick(0, 2) == 0) *extent = 1;
    return shape;
  }
  std::optional<Align> align() {
    if (scores_.length == scores_.dim && pick(0, 1) == 0) return std::nullopt;
    return pick(0, 1) == 0 ? Align::starts : Align::ends;
  }
  std::int64_t reach() { return pick(0, 4) == 0 ? most - pick(0, 2) : pick(0, 5); }
  BoolView bools(std::int64_t columns = -1) {
    Shape shape = broadcast_shape();
    if (columns >= 0 && shape.dim != 1) shape.dim = columns;
    const auto count = static_cast<std::size_t>(shape.elements());
    bool* const data = bools_.emplace_back(std::make_unique<bool[]>(count + 1)).get();
    for (std::size_t n = 0; n < count; ++n) data[n] = pick(0, 1) == 1;
    return {data, shape, pick(0, 1) == 1 ? bhsd(shape) : bshd(shape)};
  }
  Mask random_mask() {
    switch (pick(0, scores_.length <= scores_.dim ? 5 : 4)) {
      case 0:
        return Causal{align()};
      case 1:
        return Window{reach(), reach(), align(), pick(0, 1) == 1 ? 0 : pick(0, 4)};
      case 2: {
        auto& counts = counts_.emplace_back(static_cast<std::size_t>(scores_.batch));
        for (std::int32_t& count : counts) count = static_cast<std::int32_t>(pick(0, scores_.dim));
        return KeyLengths{counts};
      }
      case 3:
        return Keep{bools()};
      case 5:
        return Tree{bools(scores_.length)};
      default:
        return Hide{bools()};
    }
  }

  std::mt19937 random_;
  Shape scores_{};
  std::deque<std::vector<float>> floats_{};
  std::deque<std::vector<std::int32_t>> counts_{};
  std::deque<std::unique_ptr<bool[]>> bools_{};
};

const std::vector<std::uint64_t> random_calls = cases::seeds(0, 10000);
const std::int64_t enough_cells = cases::small_selection() ? 20000 : 100000;  // cells of theirs

TEST(Lowering, a_query_sees_the_keys_that_every_mask_lets_it_see) {
  std::int64_t wrong = 0, seen = 0, unseen = 0;
  for (const std::uint64_t seed : random_calls) {
    const RandomCall call(seed);
    const Problem p = make_problem(call.inputs, call.outputs, call.options);
    for_each_cell(p, [&](const Cell& c) {
      bool expected = true;
      for (const Mask& mask : call.options.masks) expected = expected && sees(mask, p, c);
      ++(expected ? seen : unseen);
      if (lowered_sees(p, c) != expected && wrong++ == 0)
        ADD_FAILURE() << "seed " << seed << ", cell (" << c.b << ", " << c.h << ", " << c.i << ", " << c.j
                      << ") is " << (expected ? "seen by the masks, not" : "not seen by the masks, but")
                      << " after lowering";
    });
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(seen, enough_cells);
  EXPECT_GT(unseen, enough_cells);
}

TEST(Lowering, offsets_and_counts_stay_in_their_ranges) {
  std::int64_t wrong = 0;
  for (const std::uint64_t seed : random_calls) {
    const RandomCall call(seed);
    const Problem p = make_problem(call.inputs, call.outputs, call.options);
    const std::int64_t furthest = p.queries + p.keys;
    bool good = static_cast<std::int64_t>(p.sequences.size()) == p.batch;
    for (const Sequence& s : p.sequences)
      good = good && std::abs(s.first_offset) <= furthest && std::abs(s.end_offset) <= furthest &&
             s.key_count >= 0 && s.key_count <= s.keys && s.queries == p.queries && s.keys == p.keys;
    if (!good && wrong++ == 0) ADD_FAILURE() << "seed " << seed;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Lowering, bias_and_sink_repeat_along_the_axes_of_extent_one) {
  std::int64_t wrong = 0, compared = 0;
  for (const std::uint64_t seed : random_calls) {
    const RandomCall call(seed);
    const Problem p = make_problem(call.inputs, call.outputs, call.options);
    const auto compare = [&](const std::optional<View>& given, const std::optional<View>& lowered,
                             const Cell& c) {
      if (!given) return;
      ++compared;
      const auto* const from = static_cast<const float*>(given->data);
      const auto* const to = static_cast<const float*>(lowered->data);
      if (from[at_broadcast(given->shape, given->stride, c)] != to[at(lowered->stride, c)] && wrong++ == 0)
        ADD_FAILURE() << "seed " << seed;
    };
    for_each_cell(p, [&](const Cell& c) {
      compare(call.options.bias, p.bias, c);
      compare(call.options.sink, p.sink, {c.b, c.h, 0, 0});
    });
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(compared, enough_cells);
}

TEST(Lowering, the_scale_is_the_one_given_or_one_over_the_root_of_the_dimension) {
  Call call;
  EXPECT_EQ(make_problem(call.inputs, call.outputs, call.options).scale(), 0.25f);
  for (const float scale : {1.0f, 0.0f, -2.5f, 1e-30f}) {
    call.options.scale = scale;
    EXPECT_EQ(make_problem(call.inputs, call.outputs, call.options).scale(), scale);
  }
}

// A layer chooses the kernel before it appends: what was lowered as arrays of f32 went to the slowest one.
TEST(Lowering, of_a_call_whose_tokens_are_to_come_is_that_of_the_call_over_the_cache_that_has_them) {
  for (const CacheType type : {CacheType::f32, CacheType::bf16, CacheType::int8}) {
    KvCache cache({.batch = 2, .kv_heads = 1, .capacity = 64, .dim = 16, .type = type, .page_size = 16});
    const std::vector<float> q(2 * 2 * 16), tokens(2 * 20 * 16);
    std::vector<float> out(q.size());
    const Inputs inputs{.q = {q, Shape{2, 2, 1, 16}}, .cache = &cache};
    const Outputs outputs{.out = {out, Shape{2, 2, 1, 16}}};
    const std::vector<std::int64_t> lengths{20, 20};
    const Problem to_come = make_problem(inputs, outputs, {}, lengths);
    cache.append({tokens, Shape{2, 1, 20, 16}}, {tokens, Shape{2, 1, 20, 16}});
    const Problem there = make_problem(inputs, outputs, {});
    const problem::LoweredProblem planned(to_come), run(there);
    ASSERT_TRUE(planned.call.cached && run.call.cached) << name_of(type);
    for (const std::size_t b : {0u, 1u}) EXPECT_EQ(planned.call.cached[b].length, run.call.cached[b].length);
    EXPECT_EQ(planned.call.k.type, run.call.k.type) << name_of(type);
    EXPECT_EQ(planned.call.layout.page_size, run.call.layout.page_size) << name_of(type);
    EXPECT_EQ(planned.call.layout.is_quantized, run.call.layout.is_quantized) << name_of(type);
  }
}

}  // namespace
}  // namespace heed
