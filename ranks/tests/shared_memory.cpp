// SPDX-License-Identifier: Apache-2.0
// Messages through shared memory: any lengths in any order, ranks that do not take or bring what they should,
// and memory that holds nonsense.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <filesystem>
#include <thread>

#include "cases/counter_random.hpp"
#include "cases/selection.hpp"
#include "ranks/tests/backward_schedules.hpp"
#include "ranks/tests/layer_schedules.hpp"
#include "ranks/tests/rank_threads.hpp"
#include "ranks/tests/schedules.hpp"
#include "ranks/tests/shared_memory_ranks.hpp"
#include "ranks/tests/step_schedules.hpp"

namespace heed::cases {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::byte>;

Bytes bytes_from(std::size_t count, std::uint64_t seed) {
  Bytes made(count);
  Dice dice(seed);
  for (std::size_t n = 0; n < count; n += 1 + count / 1000)
    made[n] = static_cast<std::byte>(dice.between(0, 255));
  return made;
}

TEST(SharedMemoryRanks, any_split_gives_the_bits_of_one_process) {
  for (const int ranks : {2, 3, 5})
    expect_nothing_said(on_ranks(group_of_shared_memory(ranks), [&](Group& group) {
      const auto first = static_cast<std::uint64_t>(7000 + 100 * ranks);
      for (const std::uint64_t seed : seeds(first, first + 20)) {
        ASSERT_TRUE(has_the_bits_of_one_process(group, seed));
        ASSERT_TRUE(step_has_the_bits_of_one_process(group, seed));
        ASSERT_TRUE(gradients_have_the_bits_of_one_process(group, seed));
        ASSERT_TRUE(layer_has_the_bits_of_one_process(group, seed));
      }
    }));
}

// The first goes by messages, and makes the board that those after it use; the long ones need a larger.
TEST(SharedMemoryRanks, steps_of_any_size_follow_each_other) {
  constexpr std::int64_t heads = 16, dim = 8;
  expect_nothing_said(on_ranks(group_of_shared_memory(3), [&](Group& group) {
    for (const std::int64_t tokens : {3000, 3000, 5, 60'000, 1, 60'000, 130'000, 4000, 130'000}) {
      const Tensor q = Tensor::random({1, heads, 1, dim}, 1), k = Tensor::random({1, heads, tokens, dim}, 2);
      const KvCacheConfig config{.kv_heads = heads, .capacity = tokens, .dim = dim, .page_size = 256};
      KvCache whole(config), own(config);
      whole.append_to(0, k.view(), k.view());
      append_own(own, 0, 0, k.view(), k.view(), group.rank(), group.size());
      Tensor expected(q.shape()), out(q.shape());
      attention({.q = q.view(), .cache = &whole}, {.out = expected.mutable_view()});
      attention(group, q.view(), {.cache = &own, .lengths = {&tokens, 1}}, {.out = out.mutable_view()});
      EXPECT_TRUE(same_bits(out, expected)) << tokens;
    }
  }));
}

// What a rank says is on the board by then.
TEST(SharedMemoryRanks, that_have_a_board_find_what_one_says_otherwise_and_go_on) {
  const std::int64_t tokens = 3000;
  const Tensor q = Tensor::random({1, 2, 1, 8}, 1), k = Tensor::random({1, 2, tokens, 8}, 2);
  const auto said = on_ranks(group_of_shared_memory(3), [&](Group& group) {
    KvCache cache({.kv_heads = 2, .capacity = tokens, .dim = 8, .page_size = 256});
    append_own(cache, 0, 0, k.view(), k.view(), group.rank(), group.size());
    std::optional<Tensor> first;
    const auto step = [&](const Options& options) {
      Tensor out(q.shape());
      attention(group, q.view(), {.cache = &cache, .lengths = {&tokens, 1}}, {.out = out.mutable_view()},
                options);
      if (!first) first = out;
      EXPECT_TRUE(same_bits(out, *first));
    };
    step({});
    step({});
    try {
      step({.softcap = group.rank() == 1 ? 7.0F : 5.0F});
      ADD_FAILURE() << "went on";
    } catch (const Error& e) {
      step({});
      step({});
      throw;
    }
  });
  for (const std::string& sentence : said)
    EXPECT_EQ(sentence.substr(0, sentence.find(" is ")), "rank 1: options.softcap, in bits,");
}

// By a call of another kind, too; and one who does not come to a step is named.
TEST(SharedMemoryRanks, that_have_a_board_name_who_does_not_come) {
  const std::int64_t tokens = 3000;
  const Tensor q = Tensor::random({1, 2, 1, 8}, 1), k = Tensor::random({1, 2, tokens, 8}, 2);
  const auto said = on_ranks(group_of_shared_memory(3, {.deadline = milliseconds(300)}), [&](Group& group) {
    KvCache cache({.kv_heads = 2, .capacity = tokens, .dim = 8, .page_size = 256});
    append_own(cache, 0, 0, k.view(), k.view(), group.rank(), group.size());
    Tensor out(q.shape());
    const auto step = [&] {
      attention(group, q.view(), {.cache = &cache, .lengths = {&tokens, 1}}, {.out = out.mutable_view()});
    };
    step();
    step();
    if (group.rank() == 1) {
      EXPECT_THROW(refuse(group, "enough"), Error);
      return;
    }
    EXPECT_THROW(step(), Error);
    step();
  });
  EXPECT_EQ(said[1], "");
  for (const std::size_t r : {0u, 2u})
    EXPECT_EQ(said[r].substr(said[r].find('(')),
              "(what each rank was called with): nothing received from rank 1 for 0.3 s");
}

// Several under way at once, waited for in any order; some have more bytes than a rank's blocks hold.
TEST(SharedMemoryRanks, bring_messages_of_any_length_in_any_order) {
  const int operations = small_selection() ? 100 : 400;
  expect_nothing_said(on_ranks(group_of_shared_memory(3), [&](Group& group) {
    Dice dice(5);
    std::vector<Bytes> data(4), expected(4);
    std::vector<Group::Pending> pending(4);
    for (int n = 0; n < operations; ++n) {
      const auto slot = static_cast<std::size_t>(dice.between(0, 3));
      pending[slot].wait();
      EXPECT_EQ(data[slot], expected[slot]);
      const int root = static_cast<int>(dice.between(0, 2));
      const std::size_t longest = dice.one_in(20) ? 5'000'000 : dice.one_in(3) ? 200'000 : 100;
      const auto count = static_cast<std::size_t>(dice.between(0, static_cast<std::int64_t>(longest)));
      expected[slot] = bytes_from(count, static_cast<std::uint64_t>(n));
      data[slot] = group.rank() == root ? expected[slot] : Bytes(count);
      pending[slot] = group.broadcast("many", root, data[slot]);
    }
    for (Group::Pending& one : pending) one.wait();
    EXPECT_EQ(data, expected);
  }));
}

// Nobody receives before all have sent more than there is room for, and what was begun last is awaited first.
TEST(SharedMemoryRanks, that_all_send_at_once_do_not_wait_for_each_other) {
  constexpr std::size_t count = 7'000'000;
  std::barrier all_have_begun(3);
  expect_nothing_said(
      on_ranks(group_of_shared_memory(3, {.deadline = milliseconds(20000)}), [&](Group& group) {
        const auto own = static_cast<std::uint64_t>(group.rank());
        std::vector<Bytes> all(3, Bytes(count)), more(3, Bytes(count));
        std::vector<std::span<std::byte>> into(all.begin(), all.end()), into_more(more.begin(), more.end());
        const Bytes first = bytes_from(count, own), second = bytes_from(count, 10 + own);
        Group::Pending gathered = group.gather("first", first, into),
                       again = group.gather("second", second, into_more);
        all_have_begun.arrive_and_wait();
        again.wait();
        gathered.wait();
        for (std::size_t r = 0; r < 3; ++r) {
          EXPECT_EQ(all[r], bytes_from(count, r));
          EXPECT_EQ(more[r], bytes_from(count, 10 + r));
        }
      }));
}

// More than there is room for in each of two groups, and one rank waits in the first while the other waits in
// the second.
TEST(SharedMemoryRanks, that_wait_in_one_group_move_what_they_began_in_another) {
  std::vector<Group> others = group_of_shared_memory(2, {.deadline = milliseconds(20000)});
  const Bytes sent = bytes_from(7'000'000, 1), also_sent = bytes_from(7'000'000, 2);
  expect_nothing_said(
      on_ranks(group_of_shared_memory(2, {.deadline = milliseconds(20000)}), [&](Group& group) {
        const bool is_root = group.rank() == 0;
        Bytes first = is_root ? sent : Bytes(sent.size()), second = is_root ? also_sent : Bytes(sent.size());
        Group::Pending here = group.broadcast("first", 0, first),
                       there = others[is_root ? 0 : 1].broadcast("second", 0, second);
        (is_root ? here : there).wait();
        (is_root ? there : here).wait();
        EXPECT_EQ(first, sent);
        EXPECT_EQ(second, also_sent);
      }));
}

TEST(SharedMemoryRanks, drop_what_nobody_waits_for_any_more) {
  expect_nothing_said(
      on_ranks(group_of_shared_memory(2, {.deadline = milliseconds(20000)}), [](Group& group) {
        for (int n = 0; n < 100; ++n) {
          Bytes data(n == 0 ? 3'000'000 : 50, static_cast<std::byte>(n));
          Group::Pending begun = group.broadcast("what", 0, data);
          if (group.rank() == 0 || n % 3 == 0) begun.wait();
        }
      }));
}

// Rank 0 cannot go on before rank 1 has let go of what it dropped, and rank 2 not before rank 0: rank 1
// expects nothing of rank 0 any more.
TEST(SharedMemoryRanks, drop_what_nobody_waits_for_while_they_wait_for_another_rank) {
  expect_nothing_said(
      on_ranks(group_of_shared_memory(3, {.deadline = milliseconds(20000)}), [](Group& group) {
        Bytes dropped(3'000'000), next(10);
        if (Group::Pending begun = group.broadcast("dropped", 0, dropped); group.rank() != 1) begun.wait();
        group.broadcast("next", 2, next).wait();
      }));
}

// Of several blocks: the pieces of two messages to one rank would come in turn.
TEST(SharedMemoryRanks, that_are_named_twice_have_it_once) {
  const int members[] = {2, 1, 2, 0, 1, 2};
  const Bytes sent = bytes_from(4 * 65536, 3);
  expect_nothing_said(on_ranks(group_of_shared_memory(3), [&](Group& group) {
    Bytes data = group.rank() == 0 ? sent : Bytes(sent.size());
    group.broadcast("named twice", 0, data, members).wait();
    EXPECT_EQ(data, sent);
  }));
}

struct Fault {
  const char* name;
  const char* sentence;  // of ranks 0 and 2
  std::function<void(Group&)> of_rank_1;
};

class SharedMemoryFaults : public testing::TestWithParam<Fault> {};

TEST_P(SharedMemoryFaults, are_reported_by_every_other_rank) {
  std::barrier first_is_over(3);
  const auto said = on_ranks(group_of_shared_memory(3, {.deadline = milliseconds(300)}), [&](Group& group) {
    Bytes data(10);
    group.broadcast("first", 0, data).wait();
    first_is_over.arrive_and_wait();
    if (group.rank() == 1) return GetParam().of_rank_1(group);
    group.broadcast("keys", 1, data).wait();
    ADD_FAILURE() << "rank " << group.rank() << " went on";
  });
  for (const std::size_t r : {0u, 2u})
    EXPECT_EQ(said[r], "rank " + std::to_string(r) + ", step 1 (keys): " + GetParam().sentence);
}

void broadcast(Group& group, std::size_t bytes) {
  Bytes data(bytes);
  group.broadcast("keys", 1, data).wait();
}

INSTANTIATE_TEST_SUITE_P(
    SharedMemoryRanks, SharedMemoryFaults,
    testing::Values(Fault{"gone", "nothing received from rank 1 for 0.3 s", [](Group&) {}},
                    Fault{"cut_short",
                          "the message from rank 1: it is shorter than the 10 bytes that were agreed on",
                          [](Group& group) { broadcast(group, 9); }},
                    Fault{"too_long",
                          "the message from rank 1: it is longer than the 10 bytes that were agreed on",
                          [](Group& group) { broadcast(group, 11); }},
                    Fault{"too_long_by_blocks",
                          "the message from rank 1: it is longer than the 10 bytes that were agreed on",
                          [](Group& group) { broadcast(group, 200'000); }},
                    Fault{"a_step_ahead", "nothing received from rank 1 for 0.3 s",
                          [](Group& group) {
                            static_cast<void>(group.broadcast("skipped", 0, {}));
                            broadcast(group, 10);
                          }}),
    [](const auto& one) { return std::string(one.param.name); });

// The one that does not take is named, and not those that wait with it.
TEST(SharedMemoryRanks, name_who_does_not_take_what_is_sent) {
  const auto said = on_ranks(group_of_shared_memory(4, {.deadline = milliseconds(300)}), [](Group& group) {
    Bytes data(5'000'000);
    if (group.rank() == 2) return std::this_thread::sleep_for(milliseconds(900));
    group.broadcast("much", 0, data).wait();
  });
  EXPECT_EQ(said[0], "rank 0, step 0 (much): nothing taken by rank 2 for 0.3 s");
}

// Whatever another process writes, a rank reads and writes its own bytes and says what is wrong, or waits for
// its deadline.
TEST(SharedMemoryRanks, do_not_believe_what_they_find) {
  for (const std::uint64_t seed : seeds(1, 20)) {
    std::unique_ptr<SharedMemory> hostile;
    std::vector<Group> ends = group_of_shared_memory(2, {.deadline = milliseconds(50)}, &hostile);
    Bytes data(3'000'000);
    Dice dice(seed);
    for (std::byte& one : hostile->bytes().first(20'000))
      one = static_cast<std::byte>(dice.one_in(2) ? 0 : dice.between(0, 255));
    EXPECT_THROW(ends[0].broadcast("keys", 1, data).wait(), Error) << "seed " << seed;
    try {
      ends[1].broadcast("keys", 1, data).wait();
      ADD_FAILURE() << "seed " << seed;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Error::rank);
    }
  }
}

// Each number of a piece that says where it is.
TEST(SharedMemoryRanks, find_a_piece_that_lies_beyond_its_block) {
  for (const std::uint32_t bad : {32u, 0x7fffffffu, 0xffffffffu})
    for (const std::size_t at : {20u, 24u}) {  // its block and its bytes
      std::unique_ptr<SharedMemory> hostile;
      std::vector<Group> ends = group_of_shared_memory(2, {.deadline = milliseconds(5000)}, &hostile);
      Bytes data(100);
      ends[1].broadcast("keys", 1, data).wait();
      constexpr std::size_t lane_bytes = 33 * 64, from_1_to_0 = 2, first_piece = 64;
      std::memcpy(hostile->bytes().data() + from_1_to_0 * lane_bytes + first_piece + at, &bad, sizeof bad);
      try {
        ends[0].broadcast("keys", 1, data).wait();
        ADD_FAILURE() << bad << " at " << at;
      } catch (const Error& e) {
        EXPECT_STREQ(
            e.what(),
            "rank 0, step 0 (keys): the message from rank 1: a piece of it is nowhere that a piece can be");
      }
    }
}

TEST(SharedMemoryRanks, leave_no_name_behind) {
  SharedMemory memory(1000);
  EXPECT_EQ(access(memory.name().c_str(), F_OK), 0);
  EXPECT_THROW(SharedMemory(memory.name(), 999), Error);
  const SharedMemory other(memory.name(), 1000);
  memory.forget_name();
  EXPECT_NE(access(memory.name().c_str(), F_OK), 0);
  EXPECT_THROW(SharedMemory(memory.name(), 1000), Error);
  memory.bytes()[7] = std::byte{9};
  EXPECT_EQ(other.bytes()[7], std::byte{9});
}

// The system would send a signal, which ends a process that does not expect it.
TEST(SharedMemoryRanks, that_may_not_write_so_long_a_file_say_so) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit less = before;
  less.rlim_cur = 1'000'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &less), 0);
  EXPECT_THROW(SharedMemory(2'000'000), Error);
  EXPECT_EQ(SharedMemory(1'000'000).bytes().size(), 1'000'000u);
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(SharedMemoryRanks, that_find_no_room_say_so_at_once) {
  try {
    const SharedMemory memory(std::size_t{1} << 50);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Error::file);
    const std::string sentence = e.what();
    EXPECT_NE(sentence.find(": has not the room: "), std::string::npos) << sentence;
    EXPECT_NE(access(sentence.substr(0, sentence.find(':')).c_str(), F_OK), 0);
  }
}

std::size_t names_of(pid_t process) {
  const std::string of_process = "heed-" + std::to_string(process) + "-";
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    count += entry.path().filename().string().starts_with(of_process);
  return count;
}

// A process that has made memory, and waits.
class Maker {
 public:
  Maker() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    process_ = fork();
    if (process_ == 0) {
      const SharedMemory memory(1000);
      const char made = 1;
      if (write(ends[1], &made, 1) == 1) pause();
      _exit(0);
    }
    char made = 0;
    EXPECT_EQ(read(ends[0], &made, 1), 1);
    close(ends[0]), close(ends[1]);
  }
  ~Maker() { end(); }
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;

  void end() {
    if (is_ended_) return;
    is_ended_ = true;
    kill(process_, SIGKILL);
    EXPECT_EQ(waitpid(process_, nullptr, 0), process_);
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
  bool is_ended_ = false;
};

// Between naming it and telling the others that all have opened it.
TEST(SharedMemoryRanks, memory_of_a_process_that_was_killed_is_removed_by_the_next_that_makes_some) {
  Maker living, killed;
  killed.end();
  EXPECT_EQ(names_of(killed.process()), 1u);
  const SharedMemory memory(1000);
  EXPECT_EQ(names_of(killed.process()), 0u);
  EXPECT_EQ(names_of(living.process()), 1u);
  living.end();
  const SharedMemory another(1000);
  EXPECT_EQ(names_of(living.process()), 0u);
  EXPECT_EQ(names_of(getpid()), 2u);
}

// As the system kills who takes the last of its memory. 4 GiB take a second, of which this is the beginning.
TEST(SharedMemoryRanks, a_process_that_is_killed_while_it_makes_memory_leaves_none) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      const SharedMemory memory(std::size_t{4} << 30);
      pause();
    } catch (const Error&) {
    }
    _exit(0);
  }
  std::this_thread::sleep_for(milliseconds(30));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(names_of(child), 0u);
}

}  // namespace
}  // namespace heed::cases
