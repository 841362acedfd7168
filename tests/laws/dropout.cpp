// SPDX-License-Identifier: Apache-2.0
// Laws of dropout (S7): which weights drop depends on (seed, batch entry, head, query, key) and nothing else.
#include <cmath>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "softmax/philox.hpp"

namespace heed::cases {
namespace {

class DropoutLaw : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, DropoutLaw, testing::ValuesIn(plan_and_kernels()), test_name);

// The known answers that the generator's authors publish.
TEST(Philox, gives_the_published_answers) {
  using softmax::Words;
  EXPECT_EQ(softmax::philox({0, 0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(softmax::philox({~0u, ~0u, ~0u, ~0u}, ~std::uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(softmax::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// All weights equal, so a dropped one is exactly zero and a survivor is not.
Call flat(Shape q, std::int64_t kv_heads, std::int64_t keys, Dropout dropout, DType dtype = DType::f32) {
  return {.q = Tensor(q, dtype),
          .k = Tensor({q.batch, kv_heads, keys, q.dim}, dtype),
          .v = Tensor::random({q.batch, kv_heads, keys, q.dim}, 1, 1, dtype),
          .dropout = dropout};
}

// The rule as docs/spec.md writes it: which counter, which key, which of the four words.
TEST_P(DropoutLaw, a_weight_drops_by_the_word_that_the_specification_gives_it) {
  const float p = 0.25f;
  const std::uint64_t seed = 0x0123456789abcdefu;
  const Call call = flat({2, 4, 5, 8}, 2, 1100, {p, seed});
  const auto got = attend(call, {.weights = true});
  if (!got) return;
  std::int64_t differ = 0;
  for_each(call.score_shape(), [&](auto b, auto h, auto i, auto j) {
    const auto counter = [](std::int64_t n) { return static_cast<std::uint32_t>(n); };
    const softmax::Words words =
        softmax::philox({counter(j / 4), counter(i), counter(b * call.heads() + h), 0}, seed);
    differ += (words.word[j % 4] < p * 0x1p32) != (got->weights->at(b, h, i, j) == 0);
  });
  EXPECT_EQ(differ, 0);
}

TEST_P(DropoutLaw, a_probability_of_zero_is_bitwise_no_dropout) {
  for (std::uint64_t seed : seeds(1000, 1020)) {
    Call call = random_call(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto expected = attend(call, everything);
    call.dropout = Dropout{0, seed};
    EXPECT_TRUE(same_bits(attend(call, everything), expected));
  }
}

TEST_P(DropoutLaw, the_keep_rate_is_binomial_and_neighbours_are_independent) {
  for (float p : {0.1f, 0.5f, 0.9f})
    for (std::uint64_t seed : {0u, 1u, 123456u}) {
      const auto got = attend(flat({2, 4, 32, 4}, 2, 64, {p, seed}), {.weights = true});
      if (!got) continue;
      double n = 0, dropped = 0, both_key = 0, both_query = 0, pairs = 0;
      auto drops = [&](auto b, auto h, auto i, auto j) { return got->weights->at(b, h, i, j) == 0; };
      for_each({2, 4, 31, 63}, [&](auto b, auto h, auto i, auto j) {
        ++n, dropped += drops(b, h, i, j);
        if (i % 2 == 1 || j % 2 == 1) return;  // disjoint pairs
        ++pairs;
        both_key += drops(b, h, i, j) && drops(b, h, i, j + 1);
        both_query += drops(b, h, i, j) && drops(b, h, i + 1, j);
      });
      const double q = static_cast<double>(p), both = q * q;  // six standard deviations either way
      EXPECT_NEAR(dropped, n * q, 6 * std::sqrt(n * q * (1 - q))) << "p " << p << ", seed " << seed;
      EXPECT_NEAR(both_key, pairs * both, 6 * std::sqrt(pairs * both * (1 - both)))
          << "p " << p << ", seed " << seed;
      EXPECT_NEAR(both_query, pairs * both, 6 * std::sqrt(pairs * both * (1 - both)))
          << "p " << p << ", seed " << seed;
    }
}

TEST_P(DropoutLaw, the_pattern_does_not_depend_on_batch_queries_keys_dim_dtype_or_kv_heads) {
  const Dropout dropout{0.5f, 77};
  const auto large = attend(flat({3, 4, 20, 16}, 4, 150, dropout), {.weights = true});
  if (!large) return;
  for (const Call& call : {flat({1, 4, 1, 3}, 1, 1, dropout), flat({2, 4, 7, 8}, 2, 64, dropout, DType::bf16),
                           flat({3, 4, 20, 64}, 1, 131, dropout, DType::f16)}) {
    const auto got = attend(call, {.weights = true});
    if (!got) continue;
    std::int64_t differ = 0;
    for_each(call.score_shape(), [&](auto b, auto h, auto i, auto j) {
      differ += (got->weights->at(b, h, i, j) == 0) != (large->weights->at(b, h, i, j) == 0);
    });
    EXPECT_EQ(differ, 0) << describe(call);
  }
}

TEST_P(DropoutLaw, batch_entries_heads_and_seeds_have_patterns_of_their_own) {
  const auto got = attend(flat({2, 2, 8, 4}, 2, 64, {0.5f, 5}), {.weights = true});
  const auto other = attend(flat({2, 2, 8, 4}, 2, 64, {0.5f, 5 | std::uint64_t{1} << 32}), {.weights = true});
  if (!got || !other) return;
  std::int64_t same_head = 0, same_batch = 0, same_seed = 0;
  for_each({1, 1, 8, 64}, [&](auto, auto, auto i, auto j) {
    auto w = [&](const Results& r, std::int64_t b, std::int64_t h) { return r.weights->at(b, h, i, j) == 0; };
    same_head += w(*got, 0, 0) == w(*got, 0, 1);
    same_batch += w(*got, 0, 0) == w(*got, 1, 0);
    same_seed += w(*got, 0, 0) == w(*other, 0, 0);
  });
  for (std::int64_t same : {same_head, same_batch, same_seed})
    EXPECT_NEAR(static_cast<double>(same), 256, 68);  // 6 sigma
}

TEST_P(DropoutLaw, survivors_are_scaled_and_the_log_sum_exp_does_not_know) {
  for (std::uint64_t seed : seeds(1030, 1050)) {
    Call call = random_call(seed);
    const auto plain = attend(call, everything);
    call.dropout = Dropout{0.4f, seed};
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto got = attend(call, everything);
    if (!plain || !got) continue;
    EXPECT_TRUE(same_bits(*got->log_sum_exp, *plain->log_sum_exp));
    // The oracle takes the pattern from the weights that came back; those too small to tell count as
    // survivors of nothing.
    auto survives = [&](auto b, auto h, auto i, auto j) { return got->weights->at(b, h, i, j) != 0; };
    EXPECT_TRUE(against_oracle(call, *got, f32_roundoff, survives));
  }
}

TEST_P(DropoutLaw, asking_for_the_weights_does_not_change_what_drops) {
  for (std::uint64_t seed : seeds(1060, 1075)) {
    Call call = random_call(seed);
    call.dropout = Dropout{0.3f, seed};
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    EXPECT_TRUE(same_bits(attend(call), attend(call, everything)));
  }
}

}  // namespace
}  // namespace heed::cases
