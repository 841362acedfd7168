// SPDX-License-Identifier: Apache-2.0
// A rank that has given up comes to the board no more, whatever it is called with: others that are late must
// not take its next call for a part of theirs.
#include <gtest/gtest.h>

#include <barrier>
#include <stdexcept>
#include <utility>

#include "cases/compare.hpp"
#include "heed/cache.hpp"
#include "heed/distributed.hpp"
#include "ranks/tests/rank_threads.hpp"
#include "ranks/tests/shared_memory_ranks.hpp"

namespace heed::cases {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t tokens = 2048;

// One step over a cache of two chunks, of so many heads that read a KV head each.
class Steps {
 public:
  Steps(Group& group, std::int64_t heads, std::int64_t dim)
      : group_(group),
        heads_(heads),
        dim_(dim),
        cache_({.kv_heads = heads, .capacity = tokens, .dim = dim, .page_size = 64}) {
    const Tensor k = Tensor::random({1, heads, tokens, dim}, 2);
    append_own(cache_, 0, 0, k.view(), k.view(), group.rank(), group.size());
  }
  void step(std::uint64_t seed) {
    const Tensor q = Tensor::random({1, heads_, 1, dim_}, seed);
    Tensor out(q.shape());
    attention(group_, q.view(), {.cache = &cache_, .lengths = {&tokens, 1}}, {.out = out.mutable_view()});
  }
  std::string sentence_of_step(std::uint64_t seed) {
    try {
      step(seed);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }

 private:
  Group& group_;
  std::int64_t heads_, dim_;
  KvCache cache_;
};

TEST(BrokenBoard, who_is_late_does_not_take_the_next_calls_of_others_for_parts_of_its_own) {
  std::barrier rank_0_gave_up(2);
  const auto said = on_ranks(group_of_shared_memory(2, {.deadline = milliseconds(300)}), [&](Group& group) {
    Steps of_rank(group, 2, 8);
    of_rank.step(1);  // makes the board
    of_rank.step(2);
    if (group.rank() == 1) {
      rank_0_gave_up.arrive_and_wait();
      return of_rank.step(3);
    }
    std::vector<std::string> sentences;
    for (int n = 0; n < 4; ++n) sentences.push_back(of_rank.sentence_of_step(3));
    rank_0_gave_up.arrive_and_wait();
    EXPECT_EQ(sentences, std::vector<std::string>(4, sentences[0]));
    throw std::runtime_error(sentences[0]);
  });
  EXPECT_TRUE(said[0].ends_with("nothing received from rank 1 for 0.3 s")) << said[0];
  EXPECT_TRUE(said[1].ends_with("nothing received from rank 0 for 0.3 s")) << said[1];
}

// Messages tell an old step by its number, of 32 bits: after 2^31 that had none the next would be dropped.
TEST(BrokenBoard, uses_of_a_board_are_no_steps_of_messages) {
  const auto sentence_after = [](std::uint64_t steps) {
    const auto said = on_ranks(group_of_shared_memory(2, {.deadline = milliseconds(300)}), [&](Group& group) {
      Steps of_rank(group, 2, 8);
      for (std::uint64_t n = 0; n < steps; ++n) of_rank.step(n);
      std::byte data[10];
      if (group.rank() == 0) group.broadcast("keys", 1, data).wait();
    });
    return said[0];
  };
  const std::string sentence = sentence_after(1);  // by messages; it makes the board
  EXPECT_TRUE(sentence.ends_with("(keys): nothing received from rank 1 for 0.3 s")) << sentence;
  EXPECT_EQ(sentence_after(9), sentence);
}

// Receives nothing more once it is told to.
class Deaf final : public Messages {
 public:
  Deaf(std::unique_ptr<Messages> under, const bool& is_deaf) : under_(std::move(under)), is_deaf_(is_deaf) {}
  int rank() const override { return under_->rank(); }
  int size() const override { return under_->size(); }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    return under_->send(to, bytes, step);
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    if (is_deaf_) throw std::runtime_error("deaf");
    return under_->receive(from, bytes, step);
  }
  bool share_memory() const override { return true; }
  void pause() override { under_->pause(); }
  void abort(const std::string& why) noexcept override { under_->abort(why); }

 private:
  std::unique_ptr<Messages> under_;
  const bool& is_deaf_;
};

TEST(BrokenBoard, is_not_there_for_a_rank_that_gave_up_while_a_larger_one_was_made) {
  const std::size_t bytes = bytes_of_shared_messages(2);
  SharedMemory memory(bytes);
  bool is_deaf = false;
  std::vector<Group> ends;
  const GroupOptions options{.deadline = milliseconds(300)};
  ends.emplace_back(messages_in(SharedMemory(memory.name(), bytes), 0, 2), options);
  ends.emplace_back(std::make_unique<Deaf>(messages_in(SharedMemory(memory.name(), bytes), 1, 2), is_deaf),
                    options);
  const auto said = on_ranks(std::move(ends), [&](Group& group) {
    Steps small(group, 2, 8), large(group, 48, 128);
    small.step(1);
    if (group.rank() == 1) is_deaf = true;
    const std::string sentence = large.sentence_of_step(2);
    EXPECT_NE(sentence, "");
    EXPECT_EQ(small.sentence_of_step(3), sentence);
    EXPECT_EQ(large.sentence_of_step(3), sentence);
    throw std::runtime_error(sentence);
  });
  EXPECT_TRUE(said[0].ends_with("(memory to share): nothing received from rank 1 for 0.3 s")) << said[0];
}

}  // namespace
}  // namespace heed::cases
