// SPDX-License-Identifier: Apache-2.0
// Decode over caches that are spread over ranks has the bits of one cache with all tokens (O1).
#include <gtest/gtest.h>

#include <limits>

#include "cases/selection.hpp"
#include "ranks/tests/rank_threads.hpp"
#include "ranks/tests/step_schedules.hpp"

namespace heed::cases {
namespace {

TEST(SpreadCaches, give_the_bits_of_one_cache_on_every_rank) {
  for (const std::uint64_t seed : seeds(9500, 9600)) {
    const auto said = on_ranks(group_of_threads(1 + static_cast<int>(seed % 8)), [&](Group& group) {
      EXPECT_TRUE(step_has_the_bits_of_one_process(group, seed));
    });
    for (const std::string& sentence : said) EXPECT_EQ(sentence, "") << "seed " << seed;
  }
}

TEST(SpreadCaches, have_every_token_once) {
  for (const std::int64_t length : {0, 1, 1023, 1024, 1025, 4096, 9999})
    for (const int ranks : {1, 2, 3, 7}) {
      std::int64_t all = 0;
      for (int rank = 0; rank < ranks; ++rank) all += own_tokens(length, rank, ranks);
      EXPECT_EQ(all, length);
    }
  EXPECT_EQ(own_tokens(5000, 0, 2), 1024 * 2 + 904);
}

// Counts the bytes of every message that is received.
class Counting final : public Messages {
 public:
  Counting(std::unique_ptr<Messages> under, std::vector<std::size_t>& received)
      : under_(std::move(under)), received_(received) {}
  int rank() const override { return under_->rank(); }
  int size() const override { return under_->size(); }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    return under_->send(to, bytes, step);
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    received_.push_back(bytes.size());
    return under_->receive(from, bytes, step);
  }
  void pause() override { under_->pause(); }
  void abort(const std::string& why) noexcept override { under_->abort(why); }

 private:
  std::unique_ptr<Messages> under_;
  std::vector<std::size_t>& received_;
};

// The rows and dimensions that only fill a vector stay where they are, and of two KV heads each rank merges
// one.
TEST(SpreadCaches, exchange_three_messages_of_what_is_real) {
  const std::int64_t tokens = 4096;
  const Tensor q = Tensor::random({1, 6, 1, 20}, 1), k = Tensor::random({1, 2, tokens, 20}, 2);
  std::vector<std::vector<std::size_t>> received(2);
  std::vector<Group> ends;
  for (std::unique_ptr<Messages>& end : messages_of_threads(2))
    ends.emplace_back(std::make_unique<Counting>(std::move(end), received[ends.size()]));
  const auto said = on_ranks(std::move(ends), [&](Group& group) {
    KvCache cache({.kv_heads = 2, .capacity = tokens, .dim = 20, .page_size = 64});
    append_own(cache, 0, 0, k.view(), k.view(), group.rank(), group.size());
    Tensor out(q.shape());
    attention(group, q.view(), {.cache = &cache, .lengths = {&tokens, 1}}, {.out = out.mutable_view()});
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
  for (const std::vector<std::size_t>& messages : received) {
    constexpr std::size_t state = 3 * (2 + 20) * sizeof(float);  // of three rows
    ASSERT_EQ(messages.size(), 3u);                              // the first: what the other was called with
    EXPECT_EQ(messages[1], 2 * state);                           // of its chunks
    EXPECT_EQ(messages[2], state);                               // of the KV head that it merged
  }
}

TEST(SpreadCaches, name_what_they_refuse_on_every_rank) {
  const Tensor q = Tensor::random({1, 2, 1, 8}, 1), k = Tensor::random({1, 1, 30, 8}, 2);
  const auto sentence_of = [&](const KvCacheConfig& config, std::int64_t length) {
    const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
      KvCache cache(config);
      if (group.rank() == 0) cache.append_to(0, k.view(), k.view());
      Tensor out(q.shape());
      const std::vector<std::int64_t> lengths{length};
      attention(group, q.view(), {.cache = &cache, .lengths = lengths}, {.out = out.mutable_view()});
    });
    EXPECT_EQ(said[0], said[1]);
    return said[0];
  };
  const KvCacheConfig good{.kv_heads = 1, .capacity = 2048, .dim = 8, .page_size = 64};
  EXPECT_EQ(sentence_of(good, 30), "");
  EXPECT_EQ(sentence_of(good, 31),
            "rank 0 refuses: cache: sequence 0 has 30 tokens, and of 31 this rank's are 31");
  KvCacheConfig bad = good;
  bad.page_size = 2048;
  EXPECT_EQ(sentence_of(bad, 30),
            "rank 0 refuses: cache.page_size: 2048 is more than 1024, the tokens of a chunk");
  bad = good;
  bad.window = CacheWindow{10, 0};
  EXPECT_EQ(sentence_of(bad, 30), "rank 0 refuses: cache.window: given, but a part of a sequence has none");
}

// S14: there is no state to exchange, and no board was ever made for one.
TEST(SpreadCaches, have_an_answer_for_no_batch_entries_and_for_no_queries) {
  for (const std::int64_t batch : {0, 1}) {
    const auto said = on_ranks(group_of_threads(3), [&](Group& group) {
      const KvCache cache({.kv_heads = 1, .capacity = 64, .dim = 8, .page_size = 16});
      const Tensor q = Tensor::random({batch, 2, 0, 8}, 1);
      const std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch));
      Tensor out(q.shape());
      attention(group, q.view(), {.cache = &cache, .lengths = lengths}, {.out = out.mutable_view()});
    });
    for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
  }
}

TEST(SpreadCaches, take_tokens_only_after_those_that_they_have) {
  const Tensor k = Tensor::random({1, 1, 30, 8}, 2);
  KvCache cache({.kv_heads = 1, .capacity = 2048, .dim = 8, .page_size = 64});
  const auto sentence_of = [&](std::int64_t length) -> std::string {
    try {
      append_own(cache, 0, length, k.view(), k.view(), 0, 2);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(sentence_of(-1), "length: -1 is negative");
  EXPECT_EQ(sentence_of(7), "cache: sequence 0 has 0 tokens, and of 7 this rank's are 7");
  EXPECT_EQ(sentence_of(std::numeric_limits<std::int64_t>::max()),
            "cache: sequence 0 has 0 tokens, and of 9223372036854775807 this rank's are 4611686018427387904");
  EXPECT_EQ(sentence_of(0), "");
  EXPECT_EQ(sentence_of(0), "cache: sequence 0 has 30 tokens, and of 0 this rank's are 0");
  EXPECT_EQ(sentence_of(30), "");
  EXPECT_EQ(cache.length(0), 60);
}

TEST(SpreadCaches, agree_on_the_dim_of_values_also_where_rank_0_has_no_state_to_send) {
  const std::int64_t tokens = 1500;
  const Tensor q = Tensor::random({1, 1, 1, 8}, 1), k = Tensor::random({1, 1, tokens, 8}, 2);
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    const std::int64_t dim = group.rank() == 0 ? 8 : 16;
    const Tensor v = Tensor::random({1, 1, tokens, dim}, 3);
    KvCache cache({.kv_heads = 1, .capacity = 2048, .dim = 8, .value_dim = dim, .page_size = 64});
    append_own(cache, 0, 0, k.view(), v.view(), group.rank(), group.size());
    Tensor out({1, 1, 1, dim});
    attention(group, q.view(), {.cache = &cache, .lengths = {&tokens, 1}}, {.out = out.mutable_view()},
              {.masks = {Window{.left = 10}}});
  });
  for (const std::string& sentence : said)
    EXPECT_EQ(sentence, "rank 1: cache.value_dim is 16, and 8 on rank 0");
}

}  // namespace
}  // namespace heed::cases
