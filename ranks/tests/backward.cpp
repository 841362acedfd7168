// SPDX-License-Identifier: Apache-2.0
// Gradients over ranks have the bits of one process (G9), whatever the number of ranks and who has what.
#include <gtest/gtest.h>

#include "cases/selection.hpp"
#include "ranks/tests/backward_schedules.hpp"
#include "ranks/tests/rank_threads.hpp"

namespace heed::cases {
namespace {

TEST(BackwardOverRanks, any_number_of_them_and_any_split_gives_the_bits_of_one_process) {
  for (const std::uint64_t seed : seeds(9800, 9920)) {
    const auto said = on_ranks(group_of_threads(1 + static_cast<int>(seed % 8)), [&](Group& group) {
      EXPECT_TRUE(gradients_have_the_bits_of_one_process(group, seed));
    });
    for (const std::string& sentence : said)
      EXPECT_EQ(sentence, "") << "seed " << seed << ": " << describe(differentiable_call(seed));
  }
}

// Products that overflow f32 on the way are the reference's, in 64 bits; what they are added to is rounded
// with them once.
TEST(BackwardOverRanks, add_to_gradients_with_the_bits_of_one_process_where_numbers_leave_f32) {
  const Split split = split_sequence({20, 60, 2, 2}, 2);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    BackwardCall whole({.q = Tensor::random({1, 2, 20, 8}, seed),
                        .k = Tensor::random({1, 2, 60, 8}, seed + 100),
                        .v = Tensor::random({1, 2, 60, 8}, seed + 200, 6)},
                       seed);
    whole.out_gradient = Tensor::random(whole.out.shape(), seed + 300, 1.2e38f);
    const auto begin = [](const BackwardCall& call) {
      BackwardResults results(call);
      results.accumulate = true;
      for (const Of of : {Of::q, Of::k, Of::v})
        for_each(results[of]->shape(),
                 [&](auto b, auto h, auto i, auto d) { results[of]->set(b, h, i, d, 1.2345e37f); });
      return results;
    };
    BackwardResults expected = begin(whole);
    differentiate(whole, expected);
    const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
      const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
      const auto of_queries = [&](const Tensor& x) { return share_of(x, share.queries, 0, 2); };
      BackwardCall own = whole;
      own.call = call_of(whole.call, share);
      own.out = of_queries(whole.out), own.log_sum_exp = of_queries(whole.log_sum_exp);
      own.out_gradient = of_queries(whole.out_gradient);
      BackwardResults found = begin(own);
      attention_backward(group, split, own.call.inputs(), own.saved(), found.views(own), own.call.options());
      for (const Of of : {Of::q, Of::k, Of::v})
        EXPECT_TRUE(same_bits(*found[of], share_of_gradient(of, *expected[of], whole.call, share)))
            << name_of(of) << ", seed " << seed;
    });
    for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
  }
}

// What has no gradient over ranks is refused by all of them before anything is written, and the group goes
// on.
TEST(BackwardOverRanks, name_what_they_refuse) {
  const Call whole{.q = Tensor::random({1, 2, 8, 4}, 1),
                   .k = Tensor::random({1, 1, 8, 4}, 2),
                   .v = Tensor::random({1, 1, 8, 4}, 3)};
  const Split split = split_sequence({8, 8, 2, 1}, 2);
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
    const BackwardCall call(call_of(whole, share), 5);
    const auto sentence = [&](const std::function<void(Gradients&, Options&)>& change) {
      BackwardResults results(call);
      const auto before = results[Of::q]->memory();
      Gradients gradients = results.views(call);
      Options options;
      change(gradients, options);
      try {
        attention_backward(group, split, call.call.inputs(), call.saved(), gradients, options);
      } catch (const Error& e) {
        EXPECT_EQ(e.code, Error::rank);
        EXPECT_EQ(results[Of::q]->memory(), before);
        return std::string(e.what());
      }
      return std::string();
    };
    Tensor bias({1, 2, 4, 8}), bias_gradient({1, 2, 4, 8}), sink({1, 2, 1, 1});
    const bool is_one = group.rank() == 1;
    EXPECT_EQ(sentence([&](Gradients&, Options& o) {
                o.bias = bias.view();
                if (is_one) o.bias->shape.length = 3;
              }),
              "rank 1 refuses: options.bias.length: 3 is neither 1 nor the rows of this rank's share: 4");
    EXPECT_EQ(sentence([&](Gradients&, Options& o) {
                o.bias = bias.view();
                if (is_one) o.bias->shape.heads = 1;
              }),
              "rank 0 refuses: options.bias.heads: 2 on rank 0, and 1 on rank 1");
    EXPECT_EQ(sentence([&](Gradients&, Options& o) {
                o.bias = bias.view();
                if (is_one) o.bias->shape.length = 1;
              }),
              "rank 0 refuses: options.bias: one row for all queries on rank 1, and a row for each on rank "
              "0");
    EXPECT_EQ(sentence([&](Gradients& g, Options& o) {
                o.bias = bias.view();
                if (is_one) g.bias = bias_gradient.mutable_view();
              }),
              "rank 1: the type of gradients.bias, or 0, is 1, and 0 on rank 0");
    EXPECT_EQ(sentence([&](Gradients& g, Options& o) {
                o.bias = bias.view();
                g.bias = bias.mutable_view();
              }),
              "rank 0 refuses: gradients.bias: shares memory with options.bias");
    EXPECT_EQ(sentence([&](Gradients& g, Options&) { g.sink = sink.mutable_view(); }),
              "rank 0 refuses: gradients.sink: given, but options.sink is not");
    EXPECT_EQ(sentence([&](Gradients& g, Options&) { g.k = g.v; }),
              "rank 0 refuses: gradients.v: shares memory with gradients.k");
    EXPECT_EQ(sentence([&](Gradients& g, Options&) { g.accumulate = is_one; }),
              "rank 1: gradients.accumulate is 1, and 0 on rank 0");
    EXPECT_EQ(sentence([&](Gradients& g, Options&) {
                if (is_one) g.out.shape.length = 3;
              }),
              "rank 1 refuses: gradients.out.length: 3 is not the rows of this rank's share: 4");
    EXPECT_EQ(sentence([](Gradients&, Options&) {}), "");
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

// Where heads of different ranks share a bias its gradient would be a sum across them.
TEST(BackwardOverRanks, refuse_the_gradient_of_a_bias_that_heads_of_other_ranks_share) {
  const Call whole{.q = Tensor::random({1, 4, 8, 4}, 1),
                   .k = Tensor::random({1, 4, 8, 4}, 2),
                   .v = Tensor::random({1, 4, 8, 4}, 3),
                   .bias = Tensor::random({1, 1, 8, 8}, 4)};
  const Split split = split_heads({8, 8, 4, 4}, 2);
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    const BackwardCall call(call_of(whole, split.of_rank[static_cast<std::size_t>(group.rank())]), 5);
    BackwardResults results(call);
    attention_backward(group, split, call.call.inputs(), call.saved(), results.views(call),
                       call.call.options());
  });
  for (const std::string& sentence : said)
    EXPECT_EQ(sentence,
              "rank 0 refuses: gradients.bias: asked for, but heads share the bias and the split has them on "
              "different ranks");
}

}  // namespace
}  // namespace heed::cases
