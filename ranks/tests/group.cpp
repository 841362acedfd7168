// SPDX-License-Identifier: Apache-2.0
// A group of ranks: what its operations do, and what is said of ranks that are gone, late, or do something
// else.
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <numeric>

#include "cases/counter_random.hpp"
#include "ranks/tests/rank_threads.hpp"

namespace heed::cases {
namespace {

using std::chrono::milliseconds;

std::span<std::byte> bytes_of(std::vector<int>& x) { return std::as_writable_bytes(std::span(x)); }
std::span<const std::byte> bytes_of(const std::vector<int>& x) { return std::as_bytes(std::span(x)); }

std::vector<int> numbers(int count, int first) {
  std::vector<int> x(static_cast<std::size_t>(count));
  std::iota(x.begin(), x.end(), first);
  return x;
}

TEST(Groups, bring_the_bytes_of_one_rank_to_all_or_to_some) {
  expect_nothing_said(on_ranks(group_of_threads(4), [](Group& group) {
    for (int root = 0; root < 4; ++root) {
      std::vector<int> data = group.rank() == root ? numbers(100, root) : numbers(100, -1000);
      group.broadcast("all", root, bytes_of(data)).wait();
      EXPECT_EQ(data, numbers(100, root));
      const std::vector<int> members{root, (root + 1) % 4};
      data.assign(100, group.rank() == root ? 7 : 0);
      group.broadcast("some", root, bytes_of(data), members).wait();
      EXPECT_EQ(data[99], group.rank() == root || group.rank() == members[1] ? 7 : 0);
    }
  }));
}

TEST(Groups, gather_in_the_order_of_ranks_and_exchange_between_all) {
  expect_nothing_said(on_ranks(group_of_threads(5), [](Group& group) {
    const std::vector<int> own = numbers(group.rank(), 10 * group.rank());  // rank 0 has none
    std::vector<std::vector<int>> all, to, from;
    std::vector<std::span<std::byte>> into, in;
    std::vector<std::span<const std::byte>> out;
    for (int r = 0; r < 5; ++r)
      all.emplace_back(static_cast<std::size_t>(r)), to.push_back(numbers(3, 100 * group.rank() + r)),
          from.emplace_back(3u);
    for (std::size_t r = 0; r < 5; ++r)
      into.push_back(bytes_of(all[r])), out.push_back(bytes_of(std::as_const(to[r]))),
          in.push_back(bytes_of(from[r]));
    Group::Pending gathered = group.gather("gather", bytes_of(own), into);
    Group::Pending exchanged = group.all_to_all("exchange", out, in);  // both under way at once
    exchanged.wait();
    gathered.wait();
    for (int r = 0; r < 5; ++r) {
      EXPECT_EQ(all[static_cast<std::size_t>(r)], numbers(r, 10 * r));
      EXPECT_EQ(from[static_cast<std::size_t>(r)], numbers(3, 100 * r + group.rank()));
    }
  }));
}

// A rank that begins to receive and then computes has not waited meanwhile.
TEST(Groups, count_a_deadline_from_when_a_rank_begins_to_wait) {
  const auto said = on_ranks(group_of_threads(2, {.deadline = milliseconds(800)}), [](Group& group) {
    std::byte one{};
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(1000));
    Group::Pending begun = group.broadcast("keys and values", 1, {&one, 1});
    if (group.rank() == 0) std::this_thread::sleep_for(milliseconds(900));
    begun.wait();
  });
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

// Each fault is rank 1's; the others must say so within the deadline and a little.
struct Fault {
  const char* name;
  const char* sentence;  // of rank 0
  std::function<void(Group&, std::vector<int>&)> of_rank_1;
};

class Faults : public testing::TestWithParam<Fault> {};

TEST_P(Faults, are_reported_by_every_other_rank_within_the_deadline) {
  const auto begun = std::chrono::steady_clock::now();
  std::barrier first_is_over(4);
  const auto said = on_ranks(group_of_threads(4, {.deadline = milliseconds(300)}), [&](Group& group) {
    std::vector<int> data(10);
    group.broadcast("first", 0, bytes_of(data)).wait();
    first_is_over.arrive_and_wait();
    if (group.rank() == 1) return GetParam().of_rank_1(group, data);
    group.broadcast("keys", 1, bytes_of(data)).wait();
    ADD_FAILURE() << "rank " << group.rank() << " went on";
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, milliseconds(5000));
  for (const std::size_t r : {0u, 2u, 3u}) {
    EXPECT_NE(said[r].find(", step 1 (keys): "), std::string::npos) << said[r];
    EXPECT_NE(said[r].find("rank 1"), std::string::npos) << said[r];
  }
  EXPECT_TRUE(said[0].find(GetParam().sentence) != std::string::npos ||
              said[2].find(GetParam().sentence) != std::string::npos ||
              said[3].find(GetParam().sentence) != std::string::npos)
      << said[0] << '\n'
      << said[2] << '\n'
      << said[3];
}

void wait_for(milliseconds time) { std::this_thread::sleep_for(time); }

INSTANTIATE_TEST_SUITE_P(
    Groups, Faults,
    testing::Values(
        Fault{"gone", "the message from rank 1: that rank is gone", [](Group&, std::vector<int>&) {}},
        Fault{"stopped", "nothing received from rank 1 for 0.3 s",
              [](Group&, std::vector<int>&) { wait_for(milliseconds(900)); }},
        Fault{"throwing", "the message from rank 1: that rank is gone",
              [](Group&, std::vector<int>&) { throw std::runtime_error("rank 1 has had enough"); }},
        Fault{"cut_short", "the message from rank 1: it has 8 bytes, not 40",
              [](Group& group, std::vector<int>& data) {
                data.resize(2);
                group.broadcast("keys", 1, bytes_of(data)).wait();
              }},
        Fault{"too_long", "the message from rank 1: it has 48 bytes, not 40",
              [](Group& group, std::vector<int>& data) {
                data.resize(12);
                group.broadcast("keys", 1, bytes_of(data)).wait();
              }},
        Fault{"empty", "nothing received from rank 1 for 0.3 s",
              [](Group& group, std::vector<int>& data) {
                group.broadcast("keys", 1, bytes_of(data).first(0)).wait();
                wait_for(milliseconds(900));
              }},
        Fault{"giving_up", "rank 1 gave up: the disk is full",
              [](Group& group, std::vector<int>&) {
                group.abort("the disk is full");
                wait_for(milliseconds(900));
              }},
        Fault{"a_step_ahead", "rank 1",
              [](Group& group, std::vector<int>& data) {
                (void)group.broadcast("skipped", 0, bytes_of(data).first(0));
                group.broadcast("keys", 1, bytes_of(data)).wait();
              }},
        Fault{
            "another_root", "rank 1",
            [](Group& group, std::vector<int>& data) { group.broadcast("keys", 0, bytes_of(data)).wait(); }},
        Fault{"another_operation", "rank 1",
              [](Group& group, std::vector<int>& data) {
                std::vector<std::vector<int>> all(4, std::vector<int>(10));
                std::vector<std::span<std::byte>> into;
                for (auto& one : all) into.push_back(bytes_of(one));
                group
                    .gather("keys", bytes_of(std::as_const(data)).first(8),
                            std::vector<std::span<std::byte>>{into[0].first(8), into[1].first(8),
                                                              into[2].first(8), into[3].first(8)})
                    .wait();
              }}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(Groups, that_are_broken_refuse_what_follows_with_the_same_sentence) {
  std::vector<Group> ends = group_of_threads(2);
  ends[0].abort("enough");
  std::vector<int> data(3);
  for (int n = 0; n < 2; ++n) {
    try {
      ends[0].broadcast("more", 0, bytes_of(data)).wait();
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Error::rank);
      EXPECT_STREQ(e.what(), "rank 0 gave up: enough");
    }
  }
  EXPECT_THROW(ends[1].broadcast("more", 0, bytes_of(data)).wait(), Error);
}

// Messages that are received through it throw what no network throws.
class Interrupted final : public Messages {
 public:
  struct Thrown : std::exception {
    const char* what() const noexcept override { return "interrupted by its user"; }
  };

  explicit Interrupted(std::unique_ptr<Messages> under) : under_(std::move(under)) {}
  int rank() const override { return under_->rank(); }
  int size() const override { return under_->size(); }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    return under_->send(to, bytes, step);
  }
  std::unique_ptr<Message> receive(int, std::span<std::byte>, std::uint32_t) override {
    struct Throwing final : Message {
      bool is_done() override { throw Thrown(); }
    };
    return std::make_unique<Throwing>();
  }
  void pause() override { under_->pause(); }
  void abort(const std::string& why) noexcept override { under_->abort(why); }

 private:
  std::unique_ptr<Messages> under_;
};

TEST(Groups, let_what_is_no_fault_of_theirs_through_and_tell_the_others) {
  std::vector<Group> ends;
  for (std::unique_ptr<Messages>& end : messages_of_threads(2)) {
    if (ends.empty()) end = std::make_unique<Interrupted>(std::move(end));
    ends.emplace_back(std::move(end));
  }
  const auto said = on_ranks(std::move(ends), [](Group& group) {
    std::byte from_0{}, from_1{};
    if (group.rank() == 1) {
      group.broadcast("keys", 0, {&from_0, 1}).wait();  // which never comes
      return;
    }
    EXPECT_THROW(group.broadcast("queries", 1, {&from_1, 1}).wait(), Interrupted::Thrown);
    group.broadcast("keys", 0, {&from_0, 1}).wait();
  });
  const std::string sentence = "rank 0, step 0 (queries): it gave up: interrupted by its user";
  EXPECT_EQ(said[0], sentence);
  EXPECT_NE(said[1].find(sentence), std::string::npos) << said[1];
}

TEST(Groups, name_what_they_cannot_do) {
  std::vector<Group> ends = group_of_threads(2);
  std::vector<int> data(3);
  const auto sentence = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(sentence([] { group_of_threads(0); }), "ranks: 0 is less than 1");
  EXPECT_EQ(sentence([&] { (void)ends[0].broadcast("", 2, bytes_of(data)); }),
            "root: 2 is none of the 2 ranks");
  EXPECT_EQ(sentence([&] { (void)ends[0].gather("", bytes_of(data), {}); }), "all: 0 pieces for 2 ranks");
  EXPECT_EQ(sentence([] { group_of_threads(1, {.deadline = milliseconds(0)}); }),
            "options.deadline: 0 ms is not above 0");
}

// Operations in any order of waiting, of any lengths.
TEST(Groups, do_a_thousand_operations) {
  expect_nothing_said(on_ranks(group_of_threads(3), [](Group& group) {
    Dice dice(5);
    std::vector<std::vector<int>> data(4);
    std::vector<Group::Pending> pending(4);
    std::vector<std::pair<int, int>> expected(4);
    for (int n = 0; n < 1000; ++n) {
      const auto slot = static_cast<std::size_t>(n % 4);
      pending[slot].wait();
      if (n >= 4) {
        EXPECT_EQ(data[slot], numbers(expected[slot].first, expected[slot].second));
      }
      const int root = static_cast<int>(dice.between(0, 2)), count = static_cast<int>(dice.between(0, 50));
      expected[slot] = {count, n};
      data[slot] =
          group.rank() == root ? numbers(count, n) : std::vector<int>(static_cast<std::size_t>(count));
      pending[slot] = group.broadcast("many", root, bytes_of(data[slot]));
    }
    for (Group::Pending& one : pending) one.wait();
  }));
}

}  // namespace
}  // namespace heed::cases
