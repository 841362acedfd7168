// SPDX-License-Identifier: Apache-2.0
// Sequences packed into one tensor, trees of drafted tokens, shared prefixes, quantised and turned caches
// (S18, S19).
#include "cases/selection.hpp"
#include "heed/check.hpp"
#include "laws/cached.hpp"

namespace heed::cases {
namespace {

class Packed : public Law {
 protected:
  // False where the kernel says that it cannot take the problem.
  bool attends(const Inputs& inputs, Attended& into, Options options) const {
    options.kernel = GetParam();
    return attend_if_accepted(
        inputs, {.out = into.out.mutable_view(), .log_sum_exp = into.log_sum_exp.mutable_view()}, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, Packed, testing::ValuesIn(plan_and_kernels()), test_name);

TokenShape random_shape(Dice& dice) {
  return {4, 2, dice.pick<std::int64_t>({8, 17, 64}), 16, dice.pick<DType>({DType::f32, DType::bf16})};
}

// Lengths of a few sequences, some of them empty.
struct Starts {
  std::vector<std::int64_t> queries{0}, keys{0};
  explicit Starts(Dice& dice) {
    for (std::int64_t n = dice.between(1, 5); n > 0; --n) {
      const std::int64_t length = dice.one_in(6) ? 0 : dice.between(1, 300);
      keys.push_back(keys.back() + length);
      queries.push_back(queries.back() + (dice.one_in(5) ? 0 : std::min(length, dice.between(1, 40))));
    }
  }
};

// A bias of packed queries has as many columns as the longest sequence has keys.
Tensor own_bias(const Tensor& all, std::int64_t first, std::int64_t count, std::int64_t keys) {
  Tensor own({1, 1, count, keys}, all.dtype());
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < keys; ++j) own.set(0, 0, i, j, all.at(0, 0, first + i, j));
  return own;
}

TEST_P(Packed, sequences_side_by_side_in_one_tensor_give_the_bits_of_each_alone) {
  std::int64_t compared = 0;
  for (std::uint64_t seed : seeds(9900, 9940)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const TokenShape s = random_shape(dice);
    const Starts starts(dice);
    const Tokens all(s, starts.keys.back(), seed);
    const Tensor q = all.q.rows(0, starts.queries.back());
    Options options{.masks = {Causal{Align::ends}, Window{50, 0, Align::ends, 3}}};
    std::int64_t longest = 0;
    for (std::size_t n = 1; n < starts.keys.size(); ++n)
      longest = std::max(longest, starts.keys[n] - starts.keys[n - 1]);
    const Tensor bias = Tensor::random({1, 1, starts.queries.back(), longest}, seed, 2, q.dtype());
    const bool is_biased = starts.queries.back() > 0 && (q.dtype() == DType::bf16 || dice.one_in(2));
    if (is_biased) options.bias = bias.view();
    Attended got = make_attended(s, 1, starts.queries.back());
    if (!attends({.q = q.view(),
                  .k = all.k.view(),
                  .v = all.v.view(),
                  .query_starts = starts.queries,
                  .key_starts = starts.keys},
                 got, options))
      continue;
    for (std::size_t n = 0; n + 1 < starts.queries.size(); ++n) {
      const std::int64_t first = starts.queries[n], count = starts.queries[n + 1] - first,
                         keys = starts.keys[n + 1] - starts.keys[n];
      const Tensor own_q = q.rows(first, count), own_k = all.k.rows(starts.keys[n], keys),
                   own_v = all.v.rows(starts.keys[n], keys);
      const Tensor biases = own_bias(bias, first, count, keys);
      if (is_biased) options.bias = biases.view();
      Attended alone = make_attended(s, 1, count);
      if (!attends({.q = own_q.view(), .k = own_k.view(), .v = own_v.view()}, alone, options)) continue;
      EXPECT_TRUE(same_bits({got.out.rows(first, count), got.log_sum_exp.rows(first, count)}, alone))
          << "sequence " << n;
      ++compared;
    }
  }
  EXPECT_TRUE(compared > 0 || !GetParam().empty());
}

TEST_P(Packed, a_batch_of_queries_packed_over_a_cache_gives_the_bits_of_each_alone) {
  for (std::uint64_t seed : seeds(9950, 9970)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const TokenShape s = random_shape(dice);
    const Starts starts(dice);
    const Tokens all(s, starts.keys.back(), seed);
    const Tensor q = all.q.rows(0, starts.queries.back());
    const auto batch = std::ssize(starts.keys) - 1;
    KvCache cache({.batch = batch,
                   .kv_heads = s.kv_heads,
                   .capacity = 300,
                   .dim = s.dim,
                   .value_dim = s.value_dim,
                   .type = cache_type(s.dtype),
                   .page_size = 32});
    for (std::int64_t n = 0; n < batch; ++n) {
      const auto at = static_cast<std::size_t>(n);
      const std::int64_t keys = starts.keys[at + 1] - starts.keys[at];
      const Tensor k = all.k.rows(starts.keys[at], keys), v = all.v.rows(starts.keys[at], keys);
      cache.append_to(n, k.view(), v.view());
    }
    const Options options{.masks = {Causal{Align::ends}}, .dropout = Dropout{0.25f, seed}};
    Attended packed = make_attended(s, 1, starts.queries.back()), cached = packed;
    const bool taken = attends({.q = q.view(),
                                .k = all.k.view(),
                                .v = all.v.view(),
                                .query_starts = starts.queries,
                                .key_starts = starts.keys},
                               packed, options);
    if (!taken) continue;
    ASSERT_TRUE(attends({.q = q.view(), .cache = &cache, .query_starts = starts.queries}, cached,
                        {.masks = {Causal{}}, .dropout = options.dropout}));
    EXPECT_TRUE(same_bits(cached, packed));
  }
}

// What lies in the rows after an entry's queries is neither read nor written.
TEST_P(Packed, padded_queries_give_the_bits_of_each_alone_and_leave_their_padding) {
  for (std::uint64_t seed : seeds(10020, 10050)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const TokenShape s = random_shape(dice);
    const std::int64_t batch = dice.between(1, 4), length = dice.between(1, 40);
    KvCache cache({.batch = batch,
                   .kv_heads = s.kv_heads,
                   .capacity = 300,
                   .dim = s.dim,
                   .value_dim = s.value_dim,
                   .type = cache_type(s.dtype),
                   .page_size = 32});
    Tensor q({batch, s.heads, length, s.dim}, s.dtype);
    q.fill(std::nanf(""));
    std::vector<std::int64_t> counts;
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t keys = dice.between(0, 300);
      counts.push_back(dice.between(0, std::min(length, keys)));
      const Tokens tokens(s, keys, seed + static_cast<std::uint64_t>(b));
      cache.append_to(b, tokens.k.view(), tokens.v.view());
      for_each({1, s.heads, counts.back(), s.dim},
               [&](auto, auto h, auto i, auto d) { q.set(b, h, i, d, tokens.q.at(0, h, i, d)); });
    }
    const Options options{.masks = {Causal{}, Window{50, 0, {}, 3}}};
    constexpr float mark = 3;
    Attended got = make_attended(s, batch, length);
    got.out.fill(mark);
    got.log_sum_exp.fill(mark);
    if (!attends({.q = q.view(), .cache = &cache, .query_counts = counts}, got, options)) continue;
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t count = counts[static_cast<std::size_t>(b)];
      View own = q.view();
      own.data = static_cast<const std::byte*>(own.data) +
                 b * own.stride.batch * static_cast<std::int64_t>(bytes_of(s.dtype));
      own.shape.batch = 1;
      own.shape.length = count;
      Attended alone = make_attended(s, 1, count);
      if (!attends({.q = own, .cache = &cache, .sequences = {&b, 1}}, alone, options)) continue;
      std::int64_t wrong = 0;
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t i = 0; i < length; ++i) {
          for (std::int64_t d = 0; d < s.value_dim; ++d)
            wrong += got.out.at(b, h, i, d) != (i < count ? alone.out.at(0, h, i, d) : mark);
          wrong += got.log_sum_exp.at(b, h, i, 0) != (i < count ? alone.log_sum_exp.at(0, h, i, 0) : mark);
        }
      EXPECT_EQ(wrong, 0) << "entry " << b << ", " << count << " of " << length << " queries";
    }
  }
}

TEST_P(Packed, a_tree_of_drafted_tokens_gives_the_bits_of_the_matrix_it_stands_for) {
  for (std::uint64_t seed : seeds(9980, 10010)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const TokenShape s = random_shape(dice);
    const std::int64_t length = dice.between(1, 400), drafted = std::min(length, dice.between(1, 12));
    const Tokens all(s, length, seed);
    const Tensor q = all.q.rows(length - drafted, drafted);
    BoolTensor tree({1, 1, drafted, drafted}), matrix({1, 1, drafted, length});
    for_each({1, 1, drafted, length}, [&](auto, auto, auto i, auto j) {
      const std::int64_t column = j - (length - drafted);
      if (column >= 0) tree.at(0, 0, i, column) = column == i || (column < i && dice.one_in(2));
      matrix.at(0, 0, i, j) = column < 0 || tree.at(0, 0, i, column);
    });
    KvCache cache({.kv_heads = s.kv_heads,
                   .capacity = length,
                   .dim = s.dim,
                   .value_dim = s.value_dim,
                   .type = cache_type(s.dtype),
                   .page_size = 16});
    cache.append(all.k.view(), all.v.view());
    Attended by_tree = make_attended(s, 1, drafted), by_matrix = by_tree, in_cache = by_tree;
    const Inputs plain{.q = q.view(), .k = all.k.view(), .v = all.v.view()};
    if (!attends(plain, by_tree, {.masks = {Tree{tree.view()}}})) continue;
    ASSERT_TRUE(attends(plain, by_matrix, {.masks = {Keep{matrix.view()}}}));
    ASSERT_TRUE(attends({.q = q.view(), .cache = &cache}, in_cache, {.masks = {Tree{tree.view()}}}));
    EXPECT_TRUE(same_bits(by_tree, by_matrix));
    EXPECT_TRUE(same_bits(in_cache, by_matrix));
  }
}

TEST_P(Packed, a_quantised_cache_stays_within_the_bound_of_what_it_holds) {
  for (std::uint64_t seed : seeds(10020, 10040)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    TokenShape s = random_shape(dice);
    s.dtype = DType::f32;
    const std::int64_t length = dice.between(1, 400), count = std::min(length, dice.between(1, 20));
    const Tokens all(s, length, seed);
    const Tensor q = all.q.rows(length - count, count);
    KvCache cache({.kv_heads = s.kv_heads,
                   .capacity = length,
                   .dim = s.dim,
                   .value_dim = s.value_dim,
                   .type = CacheType::int8,
                   .page_size = 16});
    cache.append(all.k.view(), all.v.view());
    Attended got = make_attended(s, 1, count);
    const Inputs inputs{.q = q.view(), .cache = &cache};
    const Options options{.masks = {Causal{}, Window{100, 0, {}, 5}}};
    if (!attends(inputs, got, options)) continue;
    const Check found = check(
        inputs, {.out = got.out.mutable_view(), .log_sum_exp = got.log_sum_exp.mutable_view()}, options);
    EXPECT_GT(found.compared, 0);
    EXPECT_EQ(found.beyond_bound, 0) << found.first_miss;
    Attended by_plan = make_attended(s, 1, count);
    attention(inputs, {.out = by_plan.out.mutable_view(), .log_sum_exp = by_plan.log_sum_exp.mutable_view()},
              options);
    if (GetParam() == "reference") continue;
    EXPECT_TRUE(same_bits(got, by_plan));
  }
}

TEST_P(Packed, keys_turned_when_read_give_the_bits_of_keys_turned_when_appended) {
  for (std::uint64_t seed : seeds(10050, 10060)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    TokenShape s = random_shape(dice);
    s.dim = 16;
    const std::int64_t length = dice.between(1, 100), count = std::min(length, dice.between(1, 20));
    const Tokens all(s, length, seed);
    const Tensor q = all.q.rows(length - count, count);
    Attended got[2] = {make_attended(s, 1, count), make_attended(s, 1, count)};
    bool taken = true;
    for (const auto when : {CacheRotary::When::append, CacheRotary::When::read}) {
      KvCache cache({.kv_heads = s.kv_heads,
                     .capacity = length,
                     .dim = s.dim,
                     .value_dim = s.value_dim,
                     .type = cache_type(s.dtype),
                     .page_size = 16,
                     .rotary = CacheRotary{{}, when}});
      cache.append(all.k.view(), all.v.view());
      taken = taken && attends({.q = q.view(), .cache = &cache}, got[when == CacheRotary::When::read],
                               {.masks = {Causal{}}});
    }
    if (!taken) continue;
    EXPECT_TRUE(same_bits(got[0], got[1]));
  }
}

// Two sequences that share a prefix: the prefix once for both, each rest by itself, merged.
TEST_P(Packed, a_shared_prefix_computed_once_and_merged_equals_the_whole_within_the_bound) {
  const TokenShape s{4, 2, 32, 32, DType::f32};
  for (std::int64_t prefix : {1, 16, 100, 1100}) {
    const Tokens all(s, prefix + 30, 10070);
    const Tensor q = all.q.rows(prefix + 29, 1), head_k = all.k.rows(0, prefix),
                 head_v = all.v.rows(0, prefix), rest_k = all.k.rows(prefix, 30),
                 rest_v = all.v.rows(prefix, 30);
    KvCache shared({.kv_heads = 2, .capacity = prefix, .dim = 32}),
        own({.kv_heads = 2, .capacity = 30, .dim = 32});
    shared.append(head_k.view(), head_v.view());
    own.append(rest_k.view(), rest_v.view());
    Attended first = make_attended(s, 1, 1), second = first;
    if (!attends({.q = q.view(), .cache = &shared}, first, {})) continue;
    ASSERT_TRUE(attends({.q = q.view(), .cache = &own}, second, {}));
    const Outputs merged{.out = first.out.mutable_view(), .log_sum_exp = first.log_sum_exp.mutable_view()};
    merge(merged, {.out = second.out.mutable_view(), .log_sum_exp = second.log_sum_exp.mutable_view()});
    const Check found = check({.q = q.view(), .k = all.k.view(), .v = all.v.view()}, merged, {});
    EXPECT_EQ(found.beyond_bound, 0) << "prefix " << prefix << ": " << found.first_miss;
  }
}

}  // namespace
}  // namespace heed::cases
