// SPDX-License-Identifier: Apache-2.0
// Gradients over ranks have the bits of one process (G9), whatever the number of ranks and who has what.
#include <gtest/gtest.h>

#include "cases/selection.hpp"
#include "ranks/backward_schedules.hpp"
#include "ranks/rank_threads.hpp"

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
    const Tensor bias({1, 1, 4, 8});
    Tensor sink({1, 2, 1, 1});
    const bool is_one = group.rank() == 1;
    EXPECT_EQ(sentence([&](Gradients&, Options& o) { o.bias = bias.view(); }),
              "rank 0 refuses: options.bias: given, but no rank has all of its rows");
    EXPECT_EQ(sentence([&](Gradients& g, Options&) { g.sink = sink.mutable_view(); }),
              "rank 0 refuses: gradients.sink: asked for, but over ranks there are those by q, k and v only");
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

}  // namespace
}  // namespace heed::cases
