// SPDX-License-Identifier: Apache-2.0
// What must not be refused: random good calls in every layout, and the good calls that look like bad ones.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "call/make_problem.hpp"
#include "cases/selection.hpp"
#include "heed/cache.hpp"
#include "heed/gradient.hpp"
#include "heed/stream.hpp"
#include "refusal/refusal.hpp"
#include "refusals/call.hpp"

namespace heed {
namespace {

void expect_accepted(const Call& call) {
  EXPECT_NO_THROW(make_problem(call.inputs, call.outputs, call.options));
}

// Views of random layouts that never overlap, over addresses that nobody reads.
class RandomGoodCall {
 public:
  explicit RandomGoodCall(std::uint64_t seed) : random_(static_cast<std::uint32_t>(seed)) {
    const std::int64_t kv_heads = pick(1, 3), heads = kv_heads * pick(0, 4), batch = pick(0, 3),
                       dim = pick(1, 80);
    const std::int64_t queries = pick(0, 9), keys = pick(0, 1) == 1 ? queries : pick(0, 20),
                       value_dim = pick(0, 70);
    dtype_ = static_cast<DType>(pick(0, 2));
    scores_ = {batch, heads, queries, keys};
    inputs = {.q = read({batch, heads, queries, dim}),
              .k = read({batch, kv_heads, keys, dim}),
              .v = read({batch, kv_heads, keys, value_dim})};
    outputs.out = written({batch, heads, queries, value_dim});
    if (maybe()) outputs.weights = written(scores_);
    if (maybe()) outputs.scores = {written(scores_), static_cast<Stage>(pick(0, 2))};
    if (maybe()) {
      outputs.log_sum_exp = written({batch, heads, queries, 1});
      outputs.log_sum_exp->dtype = DType::f32;
    }
    choose_options();
  }

  Inputs inputs{};
  Outputs outputs{};
  Options options{};

 private:
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool maybe() { return pick(0, 1) == 1; }
  template <class T = void>
  T* address() {
    return reinterpret_cast<T*>(next_address_ += std::uintptr_t{1} << 30);
  }

  void choose_options() {
    if (maybe()) options.bias = read(broadcast());
    if (maybe()) options.sink = read({maybe() ? scores_.batch : 1, maybe() ? scores_.heads : 1, 1, 1});
    if (maybe()) options.scale = static_cast<float>(pick(-3, 3));
    if (maybe()) options.softcap = static_cast<float>(pick(1, 50));
    if (maybe()) options.dropout = Dropout{static_cast<float>(pick(0, 99)) / 100, 7};
    if (maybe()) options.head_map = HeadMap::tiled;
    const bool square = scores_.length == scores_.dim;
    if (maybe()) options.masks.push_back(Causal{square ? std::nullopt : std::optional(Align::ends)});
    if (maybe()) options.masks.push_back(Window{pick(0, 9), maybe() ? most : 0, Align::starts});
    if (maybe())
      options.masks.push_back(KeyLengths{{counts_.data(), static_cast<std::size_t>(scores_.batch)}});
    if (maybe()) options.masks.push_back(Keep{bools()});
    if (maybe()) options.masks.push_back(Hide{bools()});
  }
  Shape broadcast() {
    return {maybe() ? scores_.batch : 1, maybe() ? scores_.heads : 1, maybe() ? scores_.length : 1,
            maybe() ? scores_.dim : 1};
  }
  // Packed with heads outside length or inside it, every axis padded by a little, or dim outermost.
  Strides layout(const Shape& n) {
    const std::int64_t pad = pick(0, 5);
    switch (pick(0, 3)) {
      case 0:
        return bhsd(n);
      case 1:
        return bshd(n);
      case 2: {
        const std::int64_t row = n.dim * 2 + pad, head = n.length * row + pad;
        return {n.heads * head + pad, head, row, 2};
      }
      default:
        return {1, n.batch, n.batch * n.heads, n.batch * n.heads * n.length};
    }
  }
  View read(const Shape& shape) {
    View view{address(), shape, layout(shape), dtype_};
    const Axes extent = axes(shape);
    const std::array stride{&view.stride.batch, &view.stride.heads, &view.stride.length, &view.stride.dim};
    for (std::size_t i = 0; i < stride.size(); ++i)
      if (pick(0, 4) == 0) *stride[i] = extent[i] > 1 || maybe() ? 0 : Strides::not_given;
    if (shape.elements() == 0 && maybe()) view.data = nullptr;
    return view;
  }
  MutableView written(const Shape& shape) {
    return {shape.elements() == 0 && maybe() ? static_cast<void*>(nullptr) : address(), shape, layout(shape),
            maybe() ? dtype_ : DType::f32};
  }
  BoolView bools() {
    const Shape shape = broadcast();
    return {address<const bool>(), shape, layout(shape)};
  }

  std::mt19937 random_;
  DType dtype_ = DType::f32;
  Shape scores_{};
  std::array<std::int32_t, 3> counts_{};
  std::uintptr_t next_address_ = 0;
};

TEST(GoodCalls, a_random_good_call_is_never_refused) {
  std::int64_t refused = 0;
  for (const std::uint64_t seed : cases::seeds(0, 20000)) {
    const RandomGoodCall call(seed);
    try {
      make_problem(call.inputs, call.outputs, call.options);
    } catch (const Error& error) {
      if (refused++ == 0) ADD_FAILURE() << "seed " << seed << ": " << error.what();
    }
  }
  EXPECT_EQ(refused, 0);
}

// One projection writes Q, K, V and room for the result side by side in every row.
TEST(GoodCalls, slices_of_one_packed_buffer_are_apart) {
  for (const std::int64_t padding : {0, 1, 7}) {
    Call call;
    const std::int64_t heads = 4, dim = 8, row = 4 * heads * dim, length = 6;
    auto* const packed = static_cast<float*>(call.place({2, 1, length + 1, row}).data);
    const Shape shape{2, heads, length, dim};
    const Strides stride{row * length + padding, dim, row, 1};
    call.inputs.q = {packed, shape, stride};
    call.inputs.k = {packed + heads * dim, shape, stride};
    call.inputs.v = {packed + 2 * heads * dim, shape, stride};
    call.outputs.out = {packed + 3 * heads * dim, shape, stride};
    expect_accepted(call);
    call.outputs.out.data = packed + 3 * heads * dim - 1;
    EXPECT_THROW(make_problem(call.inputs, call.outputs, call.options), Error) << "one element too early";
  }
}

TEST(GoodCalls, the_result_may_lie_between_the_heads_of_q) {
  Call call;
  const MutableView both = call.place({2, 16, 4, 16});
  auto* const data = static_cast<float*>(both.data);
  const Strides stride{both.stride.batch, 2 * both.stride.heads, both.stride.length, 1};
  call.inputs.q = {data, {2, 8, 4, 16}, stride};
  call.outputs.out = {data + both.stride.heads, {2, 8, 4, 8}, stride};
  expect_accepted(call);
}

TEST(GoodCalls, inputs_may_share_memory_with_each_other) {
  Call call;
  call.inputs.v = call.inputs.k;
  call.outputs.out = call.place({2, 8, 4, 16});
  expect_accepted(call);
}

TEST(GoodCalls, an_input_may_be_broadcast_by_a_stride_of_zero) {
  Call call;
  call.inputs.k.stride = {0, 0, 16, 1};
  call.inputs.v.stride = {0, 72, 0, 0};
  expect_accepted(call);
}

TEST(GoodCalls, empty_arrays_need_no_memory) {
  for (std::int64_t Shape::* const axis : {&Shape::batch, &Shape::heads, &Shape::length}) {
    Call call;
    for (View* view : {&call.inputs.q, &call.inputs.k, &call.inputs.v}) {
      view->shape.*axis = 0;
      view->data = nullptr;
    }
    call.outputs.out.shape.*axis = 0;
    call.outputs.out.data = nullptr;
    expect_accepted(call);
  }
}

// S14: which sequences of the cache they are need not be said of none.
TEST(GoodCalls, an_empty_batch_may_stand_over_any_cache) {
  const KvCache cache({.batch = 3, .kv_heads = 2, .capacity = 5, .dim = 16, .value_dim = 8});
  Call call;
  call.inputs = {.q = call.inputs.q, .cache = &cache};
  call.inputs.q.shape.batch = call.outputs.out.shape.batch = 0;
  expect_accepted(call);
}

TEST(GoodCalls, no_keys_and_no_value_dimensions_are_allowed) {
  Call call;
  call.inputs.k.shape.length = call.inputs.v.shape.length = 0;
  expect_accepted(call);
  call.inputs.v.shape.dim = call.outputs.out.shape.dim = 0;
  expect_accepted(call);
}

TEST(GoodCalls, no_heads_are_allowed_with_any_number_of_kv_heads) {
  Call call;
  call.inputs.q.shape.heads = call.outputs.out.shape.heads = 0;
  expect_accepted(call);
  call.inputs.k.shape.heads = call.inputs.v.shape.heads = 0;
  expect_accepted(call);
}

// S14: so many that memory for each would be an error.
TEST(GoodCalls, batch_entries_without_heads_or_queries_take_no_memory) {
  constexpr std::int64_t many = std::int64_t{1} << 31;
  const std::vector<float> numbers(1000);
  std::vector<float> gradients(1000);
  const Strides one_for_all{0, 16, 16, 1};
  const bool keep = true;
  for (const auto& [heads, queries] : {std::pair(0, 3), {4, 0}, {0, 0}}) {
    const View q{numbers.data(), {many, heads, queries, 16}};
    const View k{numbers.data(), {many, 2, 3, 16}, one_for_all};
    const MutableView out{gradients.data(), q.shape}, sums{gradients.data(), {many, heads, queries, 1}};
    const Outputs outputs{.out = out, .log_sum_exp = sums};
    Options options{.masks = {Causal{Align::ends}, Window{2, 0, Align::ends}, Window{1, 0, Align::ends, 1},
                              Keep{BoolView{&keep, {}}}}};
    attention({.q = q, .k = k, .v = k}, outputs, options);
    attention_backward({.q = q, .k = k, .v = k}, {out, sums}, {.out = out, .q = out}, options);
    KeyStream stream({.q = q, .kv_heads = 2}, outputs);
    stream.add(k, k);
    stream.finish();
    options.masks = {Causal{}};
    if (queries != 3) {
      EXPECT_THROW(attention({.q = q, .k = k, .v = k}, outputs, options), Error) << "what is wrong stays so";
    }
  }
}

TEST(GoodCalls, the_stride_of_an_axis_of_one_entry_never_matters) {
  Call call;
  call.inputs.q = call.place({1, 8, 4, 16});
  call.inputs.k = call.place({1, 2, 9, 16});
  call.inputs.v = call.place({1, 2, 9, 8});
  call.outputs.out = call.place({1, 8, 4, 8});
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{1}, most}) {
    call.inputs.q.stride.batch = call.inputs.k.stride.batch = call.outputs.out.stride.batch = stride;
    expect_accepted(call);
  }
}

}  // namespace
}  // namespace heed
