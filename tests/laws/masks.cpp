// SPDX-License-Identifier: Apache-2.0
// Laws of masks (S3, S4, S6, S9, S10, S11, S17, S21): the same visible keys give the same bits, however they
// are said.
#include <cmath>
#include <limits>
#include <optional>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"

namespace heed::cases {
namespace {

class Masks : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, Masks, testing::ValuesIn(plan_and_kernels()), test_name);

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

TEST_P(Masks, every_way_to_say_the_same_visible_keys_gives_the_same_bits) {
  for (std::uint64_t seed : seeds(300, 340)) {
    const Call call = random_call(seed, {.bias = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    BoolTensor keep(call.score_shape()), hide(call.score_shape());
    Call with_keep = call, with_hide = call, with_bias = call;
    for (Call* c : {&with_keep, &with_hide, &with_bias}) {
      c->causal.reset();
      c->window.reset();
      c->key_lengths.reset();
      c->documents.reset();
      c->matrices.clear();
    }
    with_bias.bias = Tensor(call.score_shape());
    for_each(call.score_shape(), [&](auto b, auto h, auto i, auto j) {
      keep.at(b, h, i, j) = call.sees(b, h, i, j);
      hide.at(b, h, i, j) = !call.sees(b, h, i, j);
      with_bias.bias->set(b, h, i, j, call.sees(b, h, i, j) ? 0.0f : minus_infinity);
    });
    with_keep.matrices.push_back({keep, false});
    with_hide.matrices.push_back({hide, true});
    const auto expected = attend(call, everything);
    for (const Call& other : {with_keep, with_hide, with_bias}) {
      const auto got = attend(other, everything);
      EXPECT_TRUE(same_bits(got, expected)) << describe(other);
    }
  }
}

TEST_P(Masks, a_window_at_least_as_long_as_the_sequence_is_no_window) {
  for (std::uint64_t seed : seeds(350, 375)) {
    Call call = random_call(seed);
    call.window.reset();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto expected = attend(call, everything);
    const std::int64_t reach = call.keys() + call.queries();
    for (std::int64_t length : {reach, std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::max()})
      for (Align align : {Align::starts, Align::ends}) {
        call.window = Window{length, length, align};
        const auto got = attend(call, everything);
        EXPECT_TRUE(same_bits(got, expected)) << "length " << length;
      }
  }
}

TEST_P(Masks, a_window_from_a_total_of_w_sees_w_keys_that_end_at_its_own) {
  for (std::int64_t total : {1, 2, 5, 16}) {
    Call call{.q = Tensor::random({1, 2, 20, 8}, 1),
              .k = Tensor::random({1, 2, 20, 8}, 2),
              .v = Tensor::random({1, 2, 20, 8}, 3),
              .window = Window::from_total(total)};
    const auto got = attend(call, everything);
    if (!got) continue;
    for (std::int64_t i = 0; i < 20; ++i)
      for (std::int64_t j = 0; j < 20; ++j)
        EXPECT_EQ(got->weights->at(0, 1, i, j) > 0, j <= i && j > i - total)
            << "total " << total << ' ' << i << ' ' << j;
  }
}

TEST_P(Masks, appending_future_tokens_never_changes_earlier_causal_rows) {
  for (std::uint64_t seed : seeds(380, 400)) {
    Call whole = random_call(seed, {.long_keys = false, .masks = false, .bias = false, .sink = false});
    const std::int64_t keys = whole.keys();
    if (keys < 2) continue;
    whole.q =
        Tensor::random({whole.batch(), whole.heads(), keys, whole.q.shape().dim}, seed, 4, whole.q.dtype());
    whole.causal = Causal{};
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(whole));
    const auto expected = attend(whole, {.log_sum_exp = true});
    for (std::int64_t prefix : {std::int64_t{1}, keys / 2, keys - 1}) {
      Call shorter = whole;
      shorter.q = whole.q.rows(0, prefix);
      shorter.k = whole.k.rows(0, prefix);
      shorter.v = whole.v.rows(0, prefix);
      const auto got = attend(shorter, {.log_sum_exp = true});
      if (!expected || !got) continue;
      EXPECT_TRUE(same_bits(got->out, expected->out.rows(0, prefix))) << "prefix " << prefix;
      EXPECT_TRUE(same_bits(*got->log_sum_exp, expected->log_sum_exp->rows(0, prefix)))
          << "prefix " << prefix;
    }
  }
}

TEST_P(Masks, a_query_that_sees_no_key_yields_zeros) {
  for (std::uint64_t seed : seeds(400, 440)) {
    Call call = random_call(seed, {.dropout = true});
    if (seed % 4 == 0) call.k = call.k.rows(0, 0), call.v = call.v.rows(0, 0);
    if (seed % 4 == 0)
      call.bias.reset(), call.matrices.clear(), call.key_lengths.reset(), call.documents.reset();
    if (seed % 4 == 1)
      call.key_lengths = std::vector<std::int32_t>(static_cast<std::size_t>(call.batch()), 0);
    if (seed % 4 == 2) call.matrices.push_back({BoolTensor(Shape{1, 1, 1, 1}), false});
    if (seed % 4 == 3) call.bias = Tensor({1, 1, 1, 1}), call.bias->fill(minus_infinity);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto got = attend(call, everything);
    if (!got) continue;
    for_each(got->out.shape(),
             [&](auto b, auto h, auto i, auto d) { EXPECT_EQ(got->out.bits(b, h, i, d), 0u); });
    for_each(got->weights->shape(),
             [&](auto b, auto h, auto i, auto d) { EXPECT_EQ(got->weights->bits(b, h, i, d), 0u); });
    for_each(got->log_sum_exp->shape(), [&](auto b, auto h, auto i, auto) {
      const Shape sink = call.sink ? call.sink->shape() : Shape{};
      const float expected =
          call.sink ? call.sink->at(sink.batch == 1 ? 0 : b, sink.heads == 1 ? 0 : h, 0, 0) : minus_infinity;
      EXPECT_EQ(got->log_sum_exp->at(b, h, i, 0), expected);
    });
  }
}

// Keys around the edges of what is read together, and as many heads as make it worth turning a mask for all.
Call masked_call(Dice& dice, std::uint64_t seed) {
  const DType dtype = dice.pick<DType>({DType::f32, DType::f16, DType::bf16});
  const std::int64_t keys =
      dice.pick<std::int64_t>({1, 7, 8, 9, 63, 64, 65, 71, 130, 255, 256, 257, 300, 700});
  const std::int64_t queries = dice.one_in(2) ? dice.between(1, 4) : dice.between(5, 60);
  const std::int64_t kv_heads = dice.pick<std::int64_t>({1, 2, 4}), heads = kv_heads * dice.between(1, 5);
  return {.q = Tensor::random({2, heads, queries, 8}, 3 * seed, 4, dtype),
          .k = Tensor::random({2, kv_heads, keys, 8}, 3 * seed + 1, 2, dtype),
          .v = Tensor::random({2, kv_heads, keys, 5}, 3 * seed + 2, 2, dtype)};
}

// Every element of `all` is the one of `some` that broadcasting puts there.
template <class Elements>
void spread(const Shape& all, const Shape& some, const Elements& copy) {
  for_each(all, [&](auto b, auto h, auto i, auto j) {
    copy(Shape{b, h, i, j}, Shape{some.batch == 1 ? 0 : b, some.heads == 1 ? 0 : h, some.length == 1 ? 0 : i,
                                  some.dim == 1 ? 0 : j});
  });
}

// Rows that are shared or each their own, elements side by side or with gaps, in f32 or in q's dtype: read in
// different ways, they are the same numbers.
TEST_P(Masks, a_bias_gives_the_same_bits_however_it_lies) {
  for (std::uint64_t seed : seeds(500, 540)) {
    Dice dice(seed);
    Call call = masked_call(dice, seed);
    Tensor bias(broadcast_some(dice, call.score_shape()));
    const std::int64_t hidden_from = dice.one_in(2) ? dice.between(0, call.keys()) : call.keys();
    const bool hides_some = dice.one_in(2);
    for_each(bias.shape(), [&](auto b, auto h, auto i, auto j) {  // eighths, which every dtype holds
      const bool hides = (hides_some && dice.one_in(5)) || (j >= hidden_from && j < hidden_from + 100);
      bias.set(b, h, i, j, hides ? minus_infinity : static_cast<float>(dice.between(-64, 64)) / 8);
    });
    Tensor full(call.score_shape()), narrow(bias.shape(), call.q.dtype());
    spread(full.shape(), bias.shape(), [&](Shape to, Shape from) {
      full.set(to.batch, to.heads, to.length, to.dim, bias.at(from.batch, from.heads, from.length, from.dim));
    });
    for_each(bias.shape(),
             [&](auto b, auto h, auto i, auto j) { narrow.set(b, h, i, j, bias.at(b, h, i, j)); });
    const Strides packed = bhsd(full.shape());
    call.bias = full.laid_out({2 * packed.batch, 2 * packed.heads, 2 * packed.length, 2});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto expected = attend(call, everything);
    for (const Tensor& other : {bias, full, narrow}) {
      call.bias = other;
      EXPECT_TRUE(same_bits(attend(call, everything), expected)) << other.shape().length << " rows";
    }
  }
}

TEST_P(Masks, a_boolean_mask_gives_the_same_bits_however_it_lies) {
  for (std::uint64_t seed : seeds(550, 590)) {
    Dice dice(seed);
    Call call = masked_call(dice, seed);
    const bool hides = dice.one_in(2);
    const std::int64_t first = dice.between(0, call.keys()), last = dice.between(first, call.keys());
    BoolTensor mask =
        random_bools(dice, broadcast_some(dice, call.score_shape()), dice.pick<std::int64_t>({2, 90}));
    for_each(mask.shape, [&](auto b, auto h, auto i, auto j) {
      mask.at(b, h, i, j) = (mask.at(b, h, i, j) && (j < first || j >= last)) != hides;
    });
    BoolTensor full(call.score_shape());
    Shape wide = full.shape;
    wide.dim *= 2;
    BoolTensor gaps(wide);  // what lies in the gaps says the opposite
    spread(full.shape, mask.shape, [&](Shape to, Shape from) {
      const bool is = mask.at(from.batch, from.heads, from.length, from.dim);
      full.at(to.batch, to.heads, to.length, to.dim) = is;
      gaps.at(to.batch, to.heads, to.length, 2 * to.dim) = is;
      gaps.at(to.batch, to.heads, to.length, 2 * to.dim + 1) = !is;
    });
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Strides every_second = bhsd(wide);
    every_second.dim = 2;
    const BoolView views[] = {{gaps.data.get(), full.shape, every_second}, mask.view(), full.view()};
    std::optional<Results> expected;
    for (const BoolView& view : views) {
      Options options = call.options(GetParam());
      options.masks.push_back(hides ? Mask{Hide{view}} : Mask{Keep{view}});
      Results got(call, everything);
      if (!attend_if_accepted(call.inputs(), got.outputs(), options)) continue;
      if (!expected) expected = got;
      EXPECT_TRUE(same_bits(got, *expected)) << view.shape.length << " rows";
    }
  }
}

// Some kernels turn it for all of them, panel by panel, unless a panel's biases are out of the ordinary: here
// those of the first rows may be. With few keys there are queries enough for tasks of other rows.
TEST_P(Masks, a_mask_that_heads_share_gives_the_bits_of_one_for_each) {
  for (const std::int64_t keys : {31, 65, 300})
    for (const auto& [group, entries] : {std::pair<std::int64_t, std::int64_t>{1, 2}, {2, 2}, {1, 1}})
      for (const int kind : {0, 1, 2, 3, 4, 5}) {
        Dice dice(static_cast<std::uint64_t>(keys + 10 * group + kind));
        const std::int64_t heads = entries == 1 ? 2 : 4;  // that share each
        const Shape q{2, heads * group, keys == 31 ? 600 : 70, 8}, k{2, heads, keys, 8};
        Call shared{.q = Tensor::random(q, 1, 4, DType::bf16),
                    .k = Tensor::random(k, 2, 2, DType::bf16),
                    .v = Tensor::random(k, 3, 2, DType::bf16)};
        if (kind == 5) shared.causal = Causal{Align::ends};
        const Shape all = shared.score_shape(), one{entries, 1, all.length, all.dim};
        Call each = shared;
        if (kind < 3 || kind == 5) {
          shared.bias = Tensor::random(one, 4, 2, kind == 0 ? DType::f32 : DType::bf16);
          if (kind == 2) shared.bias->set(0, 0, 1, keys / 2, minus_infinity);
          each.bias = Tensor(all, shared.bias->dtype());
          spread(all, one, [&](Shape to, Shape from) {
            each.bias->set(to.batch, to.heads, to.length, to.dim,
                           shared.bias->at(from.batch, 0, from.length, from.dim));
          });
        } else {
          shared.matrices.push_back({random_bools(dice, one, 3), kind == 4});
          each.matrices.push_back({BoolTensor(all), kind == 4});
          spread(all, one, [&](Shape to, Shape from) {
            each.matrices[0].where.at(to.batch, to.heads, to.length, to.dim) =
                shared.matrices[0].where.at(from.batch, 0, from.length, from.dim);
          });
        }
        EXPECT_TRUE(same_bits(attend(shared, everything), attend(each, everything)))
            << keys << " keys, " << group << " heads a group, " << entries << " masks, kind " << kind;
      }
}

// In every kernel and in the reference, wherever the queries stand.
TEST_P(Masks, alibi_gives_the_bits_of_the_bias_that_holds_its_numbers) {
  for (std::uint64_t seed : seeds(590, 620)) {
    Call call = random_call(seed, {.bias = false});
    Dice dice(seed);
    call.alibi = Slopes{.align = dice.one_in(2) ? Align::ends : Align::starts};
    const std::int64_t entries = dice.one_in(2) ? 1 : call.batch();
    for (std::int64_t n = 0; n < entries * call.heads(); ++n)
      call.alibi->of_heads.push_back(
          std::ldexp(1 + uniform(seed, static_cast<std::uint64_t>(n)), -static_cast<int>(n % call.heads())));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Call with_bias = call;
    with_bias.alibi.reset();
    with_bias.bias = Tensor({entries, call.heads(), call.queries(), call.keys()});
    for_each(with_bias.bias->shape(), [&](auto b, auto h, auto i, auto j) {
      with_bias.bias->set(b, h, i, j, call.alibi_at(b, h, i, j));
    });
    for (const Wants& wants : {Wants{.log_sum_exp = true}, everything, Wants{.scores = Stage::biased}})
      EXPECT_TRUE(same_bits(attend(call, wants), attend(with_bias, wants)));
  }
}

TEST_P(Masks, slopes_too_steep_for_f32_are_the_references) {
  Call call{.q = Tensor::random({1, 1, 4, 8}, 1),
            .k = Tensor::random({1, 1, 30, 8}, 2),
            .v = Tensor::random({1, 1, 30, 8}, 3)};
  for (const float slope : {1e36f, 1.2e37f, 3e38f, -3e38f}) {
    call.alibi = Slopes{{slope}, Align::ends};
    const Results expected = run(call, everything, "reference");
    const auto got = attend(call, everything);
    if (!got) continue;
    EXPECT_TRUE(same_bits(got->out, expected.out)) << slope;
  }
}

// NumPy and others call any byte but 0 true.
TEST_P(Masks, every_byte_but_0_is_true) {
  BoolTensor ones({1, 1, 9, 150});
  std::vector<unsigned char> bytes(9 * 150);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    bytes[n] = n % 3 == 0 || n % 150 > 128 ? 0 : static_cast<unsigned char>(1 + n * 37 % 255);
    ones.data[static_cast<std::ptrdiff_t>(n)] = bytes[n] != 0;
  }
  const BoolView other{reinterpret_cast<const bool*>(bytes.data()), ones.shape};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Call call{.q = Tensor::random({1, 1, 9, 8}, 1, 1, dtype),
                    .k = Tensor::random({1, 1, 150, 8}, 2, 1, dtype),
                    .v = Tensor::random({1, 1, 150, 8}, 3, 1, dtype)};
    if (!attend(call)) continue;
    for (const bool hides : {false, true}) {
      Results expected(call, {}), found(call, {});
      const auto mask = [&](const BoolView& where) { return hides ? Mask{Hide{where}} : Mask{Keep{where}}; };
      attention(call.inputs(), expected.outputs(), {.masks = {mask(ones.view())}, .kernel = GetParam()});
      attention(call.inputs(), found.outputs(), {.masks = {mask(other)}, .kernel = GetParam()});
      EXPECT_TRUE(same_bits(found, expected));
    }
  }
}

TEST_P(Masks, windows_of_different_fronts_show_what_both_show) {
  for (const std::int64_t queries : {3, 40}) {
    const Call call{.q = Tensor::random({1, 2, queries, 16}, 1),
                    .k = Tensor::random({1, 1, 300, 16}, 2),
                    .v = Tensor::random({1, 1, 300, 16}, 3)};
    const Window near{.left = 20, .right = 0, .align = Align::ends, .front = 30},
        far{.left = 100, .right = 9, .align = Align::ends, .front = 5};
    BoolTensor both({1, 1, queries, 300});
    for_each(both.shape, [&](auto b, auto h, auto i, auto j) {
      const std::int64_t own = i + 300 - queries;
      const auto shows = [&](const Window& w) {
        return (own - j <= w.left || j < w.front) && j - own <= w.right;
      };
      both.at(b, h, i, j) = shows(near) && shows(far);
    });
    const auto attended = [&](std::initializer_list<Mask> masks) -> std::optional<Results> {
      Results results(call, {});
      try {
        attention(call.inputs(), results.outputs(), {.masks = masks, .kernel = GetParam()});
      } catch (const Error&) {
        return {};
      }
      return results;
    };
    EXPECT_TRUE(same_bits(attended({near, far}), attended({Keep{both.view()}})));
    EXPECT_TRUE(same_bits(attended({far, near}), attended({Keep{both.view()}})));
  }
}

// -inf is a mask; -1e30 is a number: a row of nothing but -1e30 is an ordinary average.
TEST_P(Masks, a_huge_negative_finite_bias_is_an_ordinary_number) {
  Call call{.q = Tensor({1, 1, 3, 4}), .k = Tensor({1, 1, 70, 4}), .v = Tensor::random({1, 1, 70, 5}, 1)};
  call.bias = Tensor({1, 1, 1, 1});
  call.bias->fill(std::numeric_limits<float>::lowest());
  const auto lowest = attend(call, everything);
  call.bias.reset();
  const auto none = attend(call, everything);
  if (!lowest || !none) return;
  EXPECT_TRUE(same_bits(lowest->out, none->out));
  EXPECT_TRUE(same_bits(*lowest->weights, *none->weights));
  EXPECT_EQ(lowest->log_sum_exp->at(0, 0, 0, 0), std::numeric_limits<float>::lowest());
}

TEST_P(Masks, zero_batch_zero_heads_and_zero_queries_are_empty_results) {
  for (const Shape& q : {Shape{0, 2, 3, 4}, Shape{2, 0, 3, 4}, Shape{2, 2, 0, 4}, Shape{0, 0, 0, 4}}) {
    const Shape k{q.batch, q.heads, 5, 4};
    const Call call{.q = Tensor(q), .k = Tensor(k), .v = Tensor(k)};
    EXPECT_NO_THROW(attend(call, everything)) << q.batch << ' ' << q.heads << ' ' << q.length;
  }
}

}  // namespace
}  // namespace heed::cases
