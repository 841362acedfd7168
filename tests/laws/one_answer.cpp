// SPDX-License-Identifier: Apache-2.0
// O1: the bits of a row depend on its query, its visible keys and values, and the options; on nothing else.
#include <algorithm>
#include <limits>
#include <numeric>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"

namespace heed::cases {
namespace {

class OneAnswer : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, OneAnswer, testing::ValuesIn(plan_and_kernels()), test_name);

TEST_P(OneAnswer, asking_for_more_never_changes_out) {
  for (std::uint64_t seed : seeds(1100, 1140)) {
    const Call call = random_call(seed, {.dropout = true});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto bare = attend(call);
    for (const Wants& wants :
         {Wants{.weights = true}, Wants{.log_sum_exp = true}, Wants{.scores = Stage::raw},
          Wants{.scores = Stage::biased}, Wants{true, true, Stage::softcapped}})
      EXPECT_TRUE(same_bits(attend(call, wants), bare));
  }
}

// Batch entry n of a tensor whose batch may broadcast.
Tensor entries(const Tensor& t, const std::vector<std::int64_t>& which) {
  Shape s = t.shape();
  s.batch = static_cast<std::int64_t>(which.size());
  Tensor made(s, t.dtype());
  for_each(s, [&](auto b, auto h, auto i, auto d) {
    made.set(b, h, i, d, t.at(t.shape().batch == 1 ? 0 : which[static_cast<std::size_t>(b)], h, i, d));
  });
  return made;
}

// Numbers of `tokens` each: one row for all, or those of the entries.
template <class Number>
std::vector<Number> entries(const std::vector<Number>& ids, std::int64_t tokens,
                            const std::vector<std::int64_t>& which) {
  if (std::ssize(ids) <= tokens) return ids;
  std::vector<Number> made;
  for (const std::int64_t b : which)
    made.insert(made.end(), ids.begin() + b * tokens, ids.begin() + (b + 1) * tokens);
  return made;
}

Call with_entries(const Call& call, const std::vector<std::int64_t>& which) {
  Call made = call;
  made.q = entries(call.q, which);
  made.k = entries(call.k, which);
  made.v = entries(call.v, which);
  if (call.bias) made.bias = entries(*call.bias, which);
  if (call.sink) made.sink = entries(*call.sink, which);
  for (BoolMatrix& m : made.matrices) {
    const BoolTensor before = m.where;
    m.where = BoolTensor(
        {static_cast<std::int64_t>(which.size()), before.shape.heads, before.shape.length, before.shape.dim});
    for_each(m.where.shape, [&](auto b, auto h, auto i, auto j) {
      m.where.at(b, h, i, j) = before.seen(which[static_cast<std::size_t>(b)], h, i, j);
    });
  }
  if (call.documents) {
    made.documents->ids = entries(call.documents->ids, call.keys(), which);
    made.documents->query_ids = entries(call.documents->query_ids, call.queries(), which);
  }
  if (call.alibi) made.alibi->of_heads = entries(call.alibi->of_heads, call.heads(), which);
  if (call.key_lengths) {
    made.key_lengths->clear();
    for (std::int64_t b : which)
      made.key_lengths->push_back((*call.key_lengths)[static_cast<std::size_t>(b)]);
  }
  return made;
}

TEST_P(OneAnswer, batch_size_and_position_change_no_bit) {
  for (std::uint64_t seed : seeds(1170, 1195)) {
    const Call call = random_call(seed, {.max_batch = 4});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto all = attend(call, everything);
    if (!all) continue;
    std::vector<std::int64_t> order(static_cast<std::size_t>(call.batch()));
    std::iota(order.begin(), order.end(), 0);
    std::reverse(order.begin(), order.end());
    order.push_back(0);  // a repeated entry makes the batch larger
    std::vector<std::vector<std::int64_t>> choices{order};
    for (std::int64_t b = 0; b < call.batch(); ++b) choices.push_back({b});
    for (const auto& which : choices) {
      const auto got = attend(with_entries(call, which), everything);
      ASSERT_TRUE(got);
      EXPECT_TRUE(same_bits(got->out, entries(all->out, which)));
      EXPECT_TRUE(same_bits(*got->weights, entries(*all->weights, which)));
      EXPECT_TRUE(same_bits(*got->log_sum_exp, entries(*all->log_sum_exp, which)));
    }
  }
}

TEST_P(OneAnswer, the_amount_of_padding_changes_no_bit) {
  for (std::uint64_t seed : seeds(1200, 1215)) {
    const Call call = random_call(seed, {.masks = false, .bias = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto bare = attend(call, {.log_sum_exp = true});
    for (std::int64_t extra : {1, 5, 64, 200}) {
      Call padded = call;
      for (Tensor Call::* operand : {&Call::k, &Call::v}) {
        Shape s = (call.*operand).shape();
        s.length += extra;
        Tensor longer((padded.*operand = Tensor(s, call.q.dtype())));
        longer.fill(std::numeric_limits<float>::quiet_NaN());
        for_each((call.*operand).shape(), [&](auto b, auto h, auto j, auto d) {
          longer.set(b, h, j, d, (call.*operand).at(b, h, j, d));
        });
        padded.*operand = longer;
      }
      padded.key_lengths = std::vector<std::int32_t>(static_cast<std::size_t>(call.batch()),
                                                     static_cast<std::int32_t>(call.keys()));
      EXPECT_TRUE(same_bits(attend(padded, {.log_sum_exp = true}), bare)) << extra << " padding keys";
    }
  }
}

// Rows [first, first + count) of a causal problem, over the keys that exist by then, as a cache would hold
// them.
Call chunk(const Call& whole, std::int64_t first, std::int64_t count) {
  Call part = whole;
  part.q = whole.q.rows(first, count);
  part.k = whole.k.rows(0, first + count);
  part.v = whole.v.rows(0, first + count);
  part.causal = Causal{Align::ends};
  return part;
}

TEST_P(OneAnswer, chunked_prefill_at_every_chunking_and_token_by_token_gives_the_rows_of_the_whole_call) {
  for (std::uint64_t seed : seeds(1220, 1232)) {
    const std::int64_t length = seed % 4 == 0 ? 140 : 70;
    Call whole = random_call(seed, {.masks = false, .bias = false});
    auto stretch = [&](const Tensor& t, std::uint64_t stream) {
      return Tensor::random({t.shape().batch, t.shape().heads, length, t.shape().dim}, stream, 2, t.dtype());
    };
    whole.q = stretch(whole.q, 1), whole.k = stretch(whole.k, 2), whole.v = stretch(whole.v, 3);
    whole.causal = Causal{};
    if (seed % 2 == 0) whole.window = Window{17, 0, Align::ends};
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(whole));
    const auto expected = attend(whole, {.log_sum_exp = true});
    if (!expected) continue;
    for (std::int64_t size : {1, 2, 3, 7, 8, 13, 16, 31, 32, 33, 64, 65}) {
      for (std::int64_t first = 0; first < length; first += size) {
        const std::int64_t count = std::min(size, length - first);
        const auto got = attend(chunk(whole, first, count), {.log_sum_exp = true});
        ASSERT_TRUE(got);
        ASSERT_TRUE(same_bits(got->out, expected->out.rows(first, count)))
            << "rows from " << first << ", chunks of " << size;
        ASSERT_TRUE(same_bits(*got->log_sum_exp, expected->log_sum_exp->rows(first, count)))
            << "rows from " << first;
      }
    }
  }
}

TEST_P(OneAnswer, a_cache_beyond_a_thousand_keys_gives_the_rows_of_the_whole_call) {
  for (bool windowed : {false, true}) {
    Call whole{.q = Tensor::random({1, 2, 1100, 8}, 1, 4),
               .k = Tensor::random({1, 1, 1100, 8}, 2, 2),
               .v = Tensor::random({1, 1, 1100, 8}, 3),
               .causal = Causal{}};
    if (windowed) whole.window = Window{300, 0, Align::ends};
    const auto expected = attend(whole, {.log_sum_exp = true});
    if (!expected) continue;  // a kernel for few queries
    for (std::int64_t first : {500, 1000, 1016, 1022, 1023, 1024, 1025, 1099})
      for (std::int64_t count : {1, 2, 8, 76}) {
        if (first + count > 1100) continue;
        const auto got = attend(chunk(whole, first, count), {.log_sum_exp = true});
        if (!got) continue;
        EXPECT_TRUE(same_bits(got->out, expected->out.rows(first, count))) << count << " rows from " << first;
        EXPECT_TRUE(same_bits(*got->log_sum_exp, expected->log_sum_exp->rows(first, count)))
            << "rows from " << first;
      }
  }
}

Tensor first_heads(const Tensor& t, std::int64_t heads) {
  const Shape s = t.shape();
  Tensor made({s.batch, heads, s.length, s.dim}, t.dtype());
  for_each(made.shape(), [&](auto b, auto h, auto i, auto d) { made.set(b, h, i, d, t.at(b, h, i, d)); });
  return made;
}

// Few rows over keys in whole lines go other ways than many, by their number, the type and the width of a
// key.
TEST_P(OneAnswer, heads_that_share_keys_do_not_know_each_other) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t dim : {16, 32, 64, 160})
      for (const std::int64_t keys : {31, 70, 301}) {
        SCOPED_TRACE(std::to_string(keys) + " keys of " + std::to_string(dim) + " " +
                     std::string(name_of(type)));
        const Call all{.q = Tensor::random({1, 12, 1, dim}, 1, 2, type),
                       .k = Tensor::random({1, 1, keys, dim}, 2, 2, type),
                       .v = Tensor::random({1, 1, keys, dim}, 3, 2, type)};
        const auto expected = attend(all, {.log_sum_exp = true});
        if (!expected) continue;
        for (const std::int64_t heads : {1, 3, 4, 7}) {
          Call some = all;
          some.q = first_heads(all.q, heads);
          const auto got = attend(some, {.log_sum_exp = true});
          ASSERT_TRUE(got);
          EXPECT_TRUE(same_bits(got->out, first_heads(expected->out, heads))) << heads << " heads";
          EXPECT_TRUE(same_bits(*got->log_sum_exp, first_heads(*expected->log_sum_exp, heads)))
              << heads << " heads";
        }
      }
}

TEST_P(OneAnswer, query_rows_do_not_know_each_other) {
  for (std::uint64_t seed : seeds(1240, 1255)) {
    Call call = random_call(seed, {.masks = false, .bias = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto all = attend(call, everything);
    if (!all) continue;
    for (std::int64_t i = 0; i < call.queries(); i += 5) {
      Call one = call;
      one.q = call.q.rows(i, 1);
      const auto got = attend(one, everything);
      ASSERT_TRUE(got);
      EXPECT_TRUE(same_bits(got->out, all->out.rows(i, 1))) << "query " << i;
      EXPECT_TRUE(same_bits(*got->weights, all->weights->rows(i, 1))) << "query " << i;
    }
  }
}

TEST_P(OneAnswer, a_second_run_gives_the_same_bits) {
  for (std::uint64_t seed : seeds(1260, 1270)) {
    const Call call = random_call(seed, {.dropout = true});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    EXPECT_TRUE(same_bits(attend(call, everything), attend(call, everything)));
  }
}

}  // namespace
}  // namespace heed::cases
