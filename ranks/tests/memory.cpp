// SPDX-License-Identifier: Apache-2.0
// Calls over ranks leave nothing behind: this program watches every allocation it makes.
#include <gtest/gtest.h>

#include <barrier>

#include "cases/allocations.hpp"
#include "cases/selection.hpp"
#include "heed/distributed.hpp"
#include "ranks/tests/rank_threads.hpp"
#include "ranks/tests/schedules.hpp"
#include "ranks/tests/shared_memory_ranks.hpp"

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
  EXPECT_LE(live[1].kept, before.kept + 16 + 2);
}

// Ranks of other kernels exchange messages, for which there is room on one of them, whichever is first.
TEST(RanksMemory, a_call_that_one_rank_has_no_memory_for_all_refuse_and_the_group_goes_on) {
  const Call whole{.q = Tensor::random({1, 2, 12, 64}, 1),
                   .k = Tensor::random({1, 2, 9000, 64}, 2),
                   .v = Tensor::random({1, 2, 9000, 64}, 3)};
  constexpr std::int64_t slots_bytes =
      9 * 1024 * 2 * 2 * 64 * 4;  // of keys and values that travel, on each rank
  const Tensor expected = run(whole, {}).out;
  const Split split = split_sequence({12, 9000, 2, 2}, 2);
  std::barrier all(2);
  const auto said = on_ranks(group_of_shared_memory(2), [&](Group& group) {
    const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
    const Call call = call_of(whole, share);
    Results results(call, {});
    Options options = call.options();
    if (group.rank() == 1) options.kernel = "cpu.stream.scalar";
    const auto attend = [&] { attention(group, split, call.inputs(), results.outputs(), options); };
    all.arrive_and_wait();
    allocations.max_bytes = allocations.live_bytes + slots_bytes * 3 / 2;
    all.arrive_and_wait();
    std::string sentence;
    try {
      attend();
    } catch (const std::exception& e) {
      sentence = e.what();
    }
    all.arrive_and_wait();
    allocations.max_bytes = std::int64_t{1} << 40;
    all.arrive_and_wait();
    attend();
    EXPECT_TRUE(same_bits(results.out, share_of(expected, share.queries, 0, 2)));
    throw std::runtime_error(sentence);
  });
  EXPECT_EQ(said[0], said[1]);
  // Where both ask at the same moment, neither gets it, and each says so itself.
  EXPECT_TRUE(said[0] == "rank 0 refuses: std::bad_alloc" || said[0] == "rank 1 refuses: std::bad_alloc" ||
              said[0] == "std::bad_alloc")
      << said[0];
}

}  // namespace
}  // namespace heed::cases
