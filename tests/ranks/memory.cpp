// SPDX-License-Identifier: Apache-2.0
// Calls over ranks leave nothing behind: this program watches every allocation it makes.
#include <gtest/gtest.h>

#include <barrier>

#include "cases/allocations.hpp"
#include "cases/selection.hpp"
#include "heed/distributed.hpp"
#include "ranks/rank_threads.hpp"
#include "ranks/schedules.hpp"

namespace heed::cases {
namespace {

// What is live while nobody is in a call. Scratch memory alone lies on 64-byte lines: it is kept for the next
// call, as many blocks as which calls met at once, but never more than 8, and one of each thread's own.
struct Live {
  std::int64_t blocks = 0, bytes = 0, kept = 0;
  static Live now() {
    const Allocations& a = allocations;
    return {a.live - a.live_aligned, a.live_bytes - a.aligned_bytes, a.live_aligned};
  }
};

TEST(RanksMemory, a_thousand_calls_of_one_group_need_no_more_than_ten) {
  const int calls = small_selection() ? 100 : 1000;
  const Call whole{.q = Tensor::random({1, 2, 12, 8}, 1),
                   .k = Tensor::random({1, 1, 1500, 8}, 2),
                   .v = Tensor::random({1, 1, 1500, 8}, 3)};
  const Split split = split_sequence({12, 1500, 2, 1}, 2);
  std::vector<Live> live;
  live.reserve(2);
  std::barrier counted(2, [&]() noexcept { live.push_back(Live::now()); });
  const Live before = Live::now();  // the barrier lies on a line too
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    const Call call = call_of(whole, split.of_rank[static_cast<std::size_t>(group.rank())]);
    Results results(call, {});
    const Outputs outputs = results.outputs();
    const Options options = call.options();
    for (int n = 0; n < calls; ++n) {
      attention(group, split, call.inputs(), outputs, options);
      if (n == 9 || n == calls - 1) counted.arrive_and_wait();
    }
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
  ASSERT_EQ(live.size(), 2u);
  EXPECT_EQ(live[1].blocks, live[0].blocks);
  EXPECT_EQ(live[1].bytes, live[0].bytes);
  EXPECT_LE(live[1].kept, before.kept + 8 + 2);
}

}  // namespace
}  // namespace heed::cases
