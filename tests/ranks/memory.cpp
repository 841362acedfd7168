// SPDX-License-Identifier: Apache-2.0
// Calls over ranks leave nothing behind: this program watches every allocation it makes.
#include <gtest/gtest.h>

#include <atomic>

#include "cases/allocations.hpp"
#include "cases/selection.hpp"
#include "heed/distributed.hpp"
#include "ranks/rank_threads.hpp"
#include "ranks/schedules.hpp"

namespace heed::cases {
namespace {

TEST(RanksMemory, a_thousand_calls_of_one_group_need_no_more_than_ten) {
  const int calls = small_selection() ? 100 : 1000;
  const Call whole{.q = Tensor::random({1, 2, 12, 8}, 1),
                   .k = Tensor::random({1, 1, 1500, 8}, 2),
                   .v = Tensor::random({1, 1, 1500, 8}, 3)};
  const Split split = split_sequence({12, 1500, 2, 1}, 2);
  std::atomic<std::int64_t> after_ten = 0, at_last = 0;
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    const Call call = call_of(whole, split.of_rank[static_cast<std::size_t>(group.rank())]);
    Results results(call, {});
    const Outputs outputs = results.outputs();
    const Options options = call.options();
    for (int n = 0; n < calls; ++n) {
      attention(group, split, call.inputs(), outputs, options);
      std::byte one{};
      if (n != 9 && n != calls - 1) continue;
      std::vector<std::byte> words(2);
      const std::vector<std::span<std::byte>> all{{&words[0], 1}, {&words[1], 1}};
      group.gather("counted", {&one, 1}, all).wait();  // nobody is in a call
      if (group.rank() == 0) (n == 9 ? after_ten : at_last) = allocations.live_bytes.load();
      group.gather("go on", {&one, 1}, all).wait();
    }
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
  // How much memory is kept for the next call depends on which calls met; a stretch of keys lost in each would
  // come to 47 MB.
  EXPECT_LE(at_last, after_ten + (128 << 10));
}

}  // namespace
}  // namespace heed::cases
