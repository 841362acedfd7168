// SPDX-License-Identifier: Apache-2.0
// Attention over ranks has the bits of one process (O1), whatever the number of ranks and who has what.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "cases/selection.hpp"
#include "heed/version.hpp"
#include "ranks/tests/rank_threads.hpp"
#include "ranks/tests/schedules.hpp"

namespace heed::cases {
namespace {

TEST(Ranks, any_number_of_them_and_any_split_gives_the_bits_of_one_process) {
  for (const std::uint64_t seed : seeds(9000, 9300)) {
    const int ranks = 1 + static_cast<int>(seed % 8);
    std::atomic<int> compared = 0;
    const auto said = on_ranks(group_of_threads(ranks), [&](Group& group) {
      const auto same = has_the_bits_of_one_process(group, seed);
      EXPECT_TRUE(same);
      ++compared;
    });
    for (const std::string& sentence : said)
      EXPECT_EQ(sentence, "") << "seed " << seed << ": " << describe(schedule_call(seed));
    EXPECT_EQ(compared, ranks);
  }
}

// Of a causal call of so many tokens: what a rank has to do with keys [first, first + 1024), in pairs of a
// query and a key.
std::int64_t causal_work(const Share& share, std::int64_t first) {
  std::int64_t pairs = 0;
  for (const Stretch& s : share.queries)
    for (std::int64_t i = std::max(s.first, first); i < s.first + s.length; ++i)
      pairs += std::min<std::int64_t>(i - first + 1, 1024);
  return pairs;
}

// How long ranks take for it that have room for so many chunks, where a pair takes one unit of time and
// messages none: a chunk is there when all ranks that have a part of it have come to where it is the last
// they have room for.
std::int64_t causal_time(const Split& split, std::size_t slots) {
  const auto chunks = static_cast<std::size_t>((split.whole.keys + 1023) / 1024);
  std::vector<std::vector<std::int64_t>> done(split.of_rank.size(), std::vector<std::int64_t>(chunks));
  for (std::size_t n = 0; n < chunks; ++n) {
    const auto first = static_cast<std::int64_t>(n) * 1024;
    std::int64_t is_there = 0;
    for (std::size_t r = 0; r < done.size(); ++r)
      for (const Stretch& s : split.of_rank[r].keys)
        if (n >= slots && s.first < first + 1024 && s.first + s.length > first)
          is_there = std::max(is_there, done[r][n - slots]);
    for (std::size_t r = 0; r < done.size(); ++r)
      done[r][n] = std::max(n > 0 ? done[r][n - 1] : 0, is_there) + causal_work(split.of_rank[r], first);
  }
  std::int64_t last = 0;
  for (const std::vector<std::int64_t>& of_rank : done) last = std::max(last, of_rank.back());
  return last;
}

TEST(Splits, leave_ranks_little_to_wait_for_under_a_causal_mask) {
  struct Case {
    std::int64_t tokens;
    int ranks;
  };
  for (const auto& [tokens, ranks] :
       {Case{8192, 2}, {16384, 2}, {16384, 8}, {16000, 5}, {32768, 16}, {65536, 8}, {65536, 32}}) {
    const Split split = split_sequence({tokens, tokens, 1, 1}, ranks);
    const auto slots = static_cast<std::size_t>(std::max<std::int64_t>(8, tokens / ranks / 1024));
    const double share = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2 / ranks;
    EXPECT_GE(share / static_cast<double>(causal_time(split, slots)), 0.95)
        << tokens << " tokens over " << ranks << " ranks";
  }
}

TEST(Splits, give_every_rank_the_queries_of_its_keys_and_every_token_once) {
  for (const std::int64_t tokens : {0, 1, 7, 15, 16, 17, 63, 4095, 4096, 4097, 8191, 50000})
    for (const int ranks : {1, 2, 3, 5, 8}) {
      const Split split = split_sequence({tokens, tokens, 1, 1}, ranks);
      std::vector<int> owners(static_cast<std::size_t>(tokens));
      for (const Share& share : split.of_rank) {
        EXPECT_EQ(share.queries, share.keys);
        std::int64_t own = 0;
        for (const Stretch& s : share.keys) {
          for (std::int64_t i = s.first; i < s.first + s.length; ++i) ++owners[static_cast<std::size_t>(i)];
          own += s.length;
        }
        EXPECT_LE(own, tokens / ranks + 8);
      }
      EXPECT_EQ(std::ranges::count(owners, 1), tokens) << tokens << " tokens over " << ranks << " ranks";
    }
}

TEST(Ranks, with_many_stretches_each_give_the_bits_of_one_process) {
  for (const std::uint64_t seed : seeds(9300, 9316)) {
    Dice dice(seed);
    const int ranks = static_cast<int>(dice.between(1, 8));
    const std::int64_t tokens = dice.one_in(4) ? dice.between(1, 40) : dice.between(1500, 9000);
    const Call whole{.q = Tensor::random({1, 2, tokens, 4}, seed),
                     .k = Tensor::random({1, 1, tokens, 4}, seed + 100),
                     .v = Tensor::random({1, 1, tokens, 4}, seed + 200)};
    const Options causal{.masks = {Causal{}}};
    Results expected(whole, {});
    attention(whole.inputs(), expected.outputs(), causal);
    const Split split = split_sequence({tokens, tokens, 2, 1}, ranks);
    const auto said = on_ranks(group_of_threads(ranks), [&](Group& group) {
      const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
      const Call call = call_of(whole, share);
      Results results(call, {});
      attention(group, split, call.inputs(), results.outputs(), causal);
      EXPECT_TRUE(same_bits(results.out, share_of(expected.out, share.queries, 0, 2)))
          << tokens << " tokens, rank " << group.rank() << " of " << ranks;
    });
    for (const std::string& sentence : said) EXPECT_EQ(sentence, "") << "seed " << seed;
  }
}

TEST(Ranks, many_calls_of_one_group_follow_each_other) {
  const auto said = on_ranks(group_of_threads(3), [](Group& group) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) EXPECT_TRUE(has_the_bits_of_one_process(group, seed));
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

// What rank 1 does differently is refused by all ranks, before anything is written, and the group goes on.
TEST(Ranks, another_call_on_one_rank_is_refused_by_all) {
  const Call whole{.q = Tensor::random({1, 2, 8, 4}, 1),
                   .k = Tensor::random({1, 1, 8, 4}, 2),
                   .v = Tensor::random({1, 1, 8, 4}, 3)};
  struct Difference {
    const char* sentence;
    std::function<void(Call&, Split&, Options&)> make;
  };
  const std::vector<Difference> differences{
      {"rank 1: options.scale, in bits,", [](Call&, Split&, Options& o) { o.scale = 0.5f; }},
      {"rank 1: options.scale, in bits,", [](Call&, Split&, Options& o) { o.scale = -0.0f; }},
      {"rank 1: options.masks, as a number,", [](Call&, Split&, Options& o) { o.masks = {Causal{}}; }},
      {"rank 1: options.dropout.seed is 8", [](Call&, Split&, Options& o) { o.dropout = Dropout{0, 8}; }},
      {"rank 1: whole.keys is 9", [](Call&, Split& s, Options&) { s = split_sequence({8, 9, 2, 1}, 3); }},
      {"rank 1 refuses: k.length: 2 is not the rows of this rank's share: 3",
       [](Call& c, Split&, Options&) { c.k = Tensor({1, 1, 2, 4}); }},
      {"rank 1: q.batch is 2",
       [](Call& c, Split&, Options&) {
         c.q = Tensor({2, 2, 3, 4}), c.k = Tensor({2, 1, 3, 4}), c.v = Tensor({2, 1, 3, 4});
       }},
      {"rank 1 refuses: options.softcap: -1", [](Call&, Split&, Options& o) { o.softcap = -1.0f; }}};
  const auto said = on_ranks(group_of_threads(3), [&](Group& group) {
    for (const auto& [sentence, make] : differences) {
      Split split = split_sequence({8, 8, 2, 1}, 3);
      Call call = call_of(whole, split.of_rank[static_cast<std::size_t>(group.rank())]);
      Options options;
      if (group.rank() == 1) make(call, split, options);
      Results results(call, {});
      const Tensor before = results.out;
      try {
        attention(group, split, call.inputs(), results.outputs(), options);
        ADD_FAILURE() << "nothing was said of " << sentence;
      } catch (const Error& e) {
        EXPECT_EQ(e.code, Error::rank);
        EXPECT_EQ(std::string(e.what()).find(sentence), 0u) << e.what();
        EXPECT_EQ(results.out.memory(), before.memory());
      }
    }
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

// The messages of a rank whose heed is of another version: what it says of its call begins with that, and so
// what it hears is not what it says.
class OfAnotherVersion final : public Messages {
 public:
  explicit OfAnotherVersion(std::unique_ptr<Messages> under) : under_(std::move(under)) {}
  int rank() const override { return under_->rank(); }
  int size() const override { return under_->size(); }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    said_.assign(bytes.begin(), bytes.end());
    write_version(said_, 9'001'002);
    return under_->send(to, said_, step);
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    return std::make_unique<Heard>(under_->receive(from, bytes, step), bytes);
  }
  void pause() override { under_->pause(); }
  void abort(const std::string& why) noexcept override { under_->abort(why); }

 private:
  struct Heard final : Message {
    Heard(std::unique_ptr<Message> under, std::span<std::byte> bytes)
        : message(std::move(under)), into(bytes) {}
    bool is_done() override {
      if (!message->is_done()) return false;
      write_version(into, 1);
      return true;
    }
    std::unique_ptr<Message> message;
    std::span<std::byte> into;
  };
  static void write_version(std::span<std::byte> said, std::int64_t version) {
    std::memcpy(said.data() + sizeof(std::int64_t), &version, sizeof version);  // after how much is said
  }

  std::unique_ptr<Messages> under_;
  std::vector<std::byte> said_{};
};

TEST(Ranks, another_version_of_heed_on_one_rank_is_named_by_the_others) {
  std::vector<Group> ends;
  for (std::unique_ptr<Messages>& end : messages_of_threads(2))
    ends.emplace_back(ends.empty() ? std::move(end) : std::make_unique<OfAnotherVersion>(std::move(end)));
  const auto said = on_ranks(std::move(ends), [](Group& group) {
    const Split split = split_sequence({4, 4, 1, 1}, 2);
    const Tensor rows({1, 1, 2, 4});
    Tensor out({1, 1, 2, 4});
    attention(group, split, {rows.view(), rows.view(), rows.view()}, {.out = out.mutable_view()});
  });
  constexpr int version = HEED_VERSION_MAJOR * 1000000 + HEED_VERSION_MINOR * 1000 + HEED_VERSION_PATCH;
  EXPECT_EQ(said[0], "rank 1: heed's version, which all ranks must share, is 9001002, and " +
                         std::to_string(version) + " on rank 0");
  EXPECT_EQ(said[1], "rank 1: heed's version, which all ranks must share, is " + std::to_string(version) +
                         ", and 1 on rank 0");
}

TEST(Ranks, what_one_cannot_even_call_all_refuse) {
  const auto said = on_ranks(group_of_threads(2), [](Group& group) {
    if (group.rank() == 1) refuse(group, "v: not an array");
    const Split split = split_sequence({4, 4, 1, 1}, 2);
    const Tensor rows({1, 1, 2, 4});
    Tensor out({1, 1, 2, 4});
    attention(group, split, {rows.view(), rows.view(), rows.view()}, {.out = out.mutable_view()});
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "rank 1 refuses: v: not an array");
}

TEST(Ranks, a_split_that_leaves_something_out_is_refused) {
  const auto refusal_of = [](const Split& split) {
    const Tensor rows({1, 1, 4, 2});
    Tensor out({1, 1, 4, 2});
    std::vector<Group> one = group_of_threads(1);
    try {
      attention(one[0], split, {rows.view(), rows.view(), rows.view()}, {.out = out.mutable_view()});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal_of({{4, 4, 1, 1}, {{{{0, 4}}, {{0, 3}}, 0, 1}}}),
            "rank 0 refuses: split: nobody has key 3 of one group of heads");
  EXPECT_EQ(refusal_of({{4, 4, 1, 1}, {{{{0, 2}, {1, 2}}, {{0, 4}}, 0, 1}}}),
            "rank 0 refuses: split: two ranks have query 1 of one group of heads");
  EXPECT_EQ(refusal_of({{4, 4, 2, 2}, {{{{0, 4}}, {{0, 4}}, 0, 1}}}),
            "rank 0 refuses: split: nobody has KV head 1");
}

}  // namespace
}  // namespace heed::cases
