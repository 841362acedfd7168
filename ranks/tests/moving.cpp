// SPDX-License-Identifier: Apache-2.0
// Messages move while ranks compute: a network that moves nothing unless it is asked does not wait for the
// end of a chunk.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "ranks/tests/rank_threads.hpp"
#include "ranks/tests/schedules.hpp"

namespace heed::cases {
namespace {

// A network whose messages want many looks, and which counts them.
class ManyLooks final : public Messages {
 public:
  ManyLooks(std::unique_ptr<Messages> under, std::atomic<int>& looks)
      : under_(std::move(under)), looks_(looks) {}
  int rank() const override { return under_->rank(); }
  int size() const override { return under_->size(); }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    return std::make_unique<Late>(under_->send(to, bytes, step), looks_);
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    return std::make_unique<Late>(under_->receive(from, bytes, step), looks_);
  }
  void pause() override {}
  void abort(const std::string& why) noexcept override { under_->abort(why); }

 private:
  class Late final : public Message {
   public:
    Late(std::unique_ptr<Message> under, std::atomic<int>& looks) : under_(std::move(under)), looks_(looks) {}
    bool is_done() override {
      ++looks_;
      return --left_ < 0 && under_->is_done();
    }

   private:
    std::unique_ptr<Message> under_;
    std::atomic<int>& looks_;
    int left_ = 30;
  };

  std::unique_ptr<Messages> under_;
  std::atomic<int>& looks_;
};

// Runs tasks that take their time, and counts the looks meanwhile.
struct SlowTasks final : Executor {
  explicit SlowTasks(std::atomic<int>& counted) : looks(counted) {}
  int concurrency() const override { return 1; }
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    const int before = looks;
    for (std::size_t n = 0; n < tasks; ++n) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      task(context, n);
    }
    looks_meanwhile += looks - before;
  }
  std::atomic<int>& looks;
  int looks_meanwhile = 0;
};

TEST(Ranks, that_compute_look_after_their_messages) {
  std::vector<std::atomic<int>> looks(2);
  std::vector<Group> ends;
  for (std::unique_ptr<Messages>& end : messages_of_threads(2))
    ends.emplace_back(std::make_unique<ManyLooks>(std::move(end), looks[ends.size()]));
  const std::int64_t tokens = 3072;
  const Call whole{.q = Tensor::random({1, 4, tokens, 16}, 1),
                   .k = Tensor::random({1, 4, tokens, 16}, 2),
                   .v = Tensor::random({1, 4, tokens, 16}, 3)};
  const Split split = split_sequence({tokens, tokens, 4, 4}, 2);
  const auto said = on_ranks(std::move(ends), [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const Call call = call_of(whole, split.of_rank[rank]);
    Results results(call, {});
    SlowTasks slow(looks[rank]);
    attention(group, split, call.inputs(), results.outputs(), {.masks = {Causal{}}, .executor = &slow});
    EXPECT_GT(slow.looks_meanwhile, 0) << "rank " << rank;
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

}  // namespace
}  // namespace heed::cases
