// SPDX-License-Identifier: Apache-2.0
// Whose threads run a call, and how many, shows nowhere but in the time it takes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "heed/heed.hpp"
#include "threads/pool.hpp"

namespace heed {
namespace {

// 4 heads over 2 KV heads, 96 queries, 300 keys, 16 dimensions: worth sharing out, and quick.
std::vector<float> attend(Options options = {}) {
  const Shape many{1, 4, 96, 16}, few{1, 2, 300, 16};
  std::vector<float> q(static_cast<std::size_t>(many.elements())),
      k(static_cast<std::size_t>(few.elements())), v = k;
  std::vector<float> out = q;
  std::uint32_t state = 1;
  for (std::vector<float>* x : {&q, &k, &v})
    for (float& y : *x)
      y = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
  options.masks = {Causal{Align::ends}};
  attention({{q, many}, {k, few}, {v, few}}, {.out = {out, many}}, options);
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Every task on a thread of its own, the last first.
struct Backwards : Executor {
  int concurrency() const override { return 3; }
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    std::vector<std::thread> threads;
    for (std::size_t i = tasks; i-- > 0;) threads.emplace_back([=] { task(context, i); });
    for (std::thread& thread : threads) thread.join();
    ran += tasks;
  }
  std::atomic<std::size_t> ran{0};
};

class Threads : public testing::Test {
 protected:
  void SetUp() override { set_num_threads(1), alone = attend(), set_num_threads(4); }
  void TearDown() override { set_executor(nullptr); }
  std::vector<float> alone;
};

TEST_F(Threads, an_executor_of_the_callers_runs_every_task_and_changes_no_bit) {
  Backwards executor;
  set_executor(&executor);
  EXPECT_TRUE(same_bits(attend(), alone));
  EXPECT_GT(executor.ran, 1u);
  set_executor(nullptr);
  const std::size_t before = executor.ran;
  EXPECT_TRUE(same_bits(attend(), alone));
  EXPECT_EQ(executor.ran, before);
}

TEST_F(Threads, ten_callers_at_once_get_the_bits_of_one) {
  std::atomic<int> different{0};
  std::vector<std::thread> callers;
  for (int n = 0; n < 10; ++n)
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 5; ++repeat) different += !same_bits(attend(), alone);
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(different, 0);
}

TEST_F(Threads, a_call_from_inside_a_task_runs_where_it_is) {
  std::atomic<int> different{0}, elsewhere{0};
  threads::parallel_for(8, [&](std::size_t) {
    const auto here = std::this_thread::get_id();
    threads::parallel_for(4, [&](std::size_t) { elsewhere += std::this_thread::get_id() != here; });
    different += !same_bits(attend(), alone);
  });
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(different, 0);
}

TEST_F(Threads, a_task_of_an_executor_starts_no_other_run) {
  Backwards executor;
  set_executor(&executor);
  threads::parallel_for(8, [&](std::size_t) { threads::parallel_for(4, [](std::size_t) {}); });
  EXPECT_EQ(executor.ran, 8u);
}

// Runs all tasks of the first `runs` that it is asked for, and of the next none.
struct Failing : Backwards {
  explicit Failing(int runs) : left(runs) {}
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    if (left-- == 0) throw std::runtime_error("the pool is closed");
    Backwards::run(tasks, task, context);
  }
  std::atomic<int> left;
};

TEST_F(Threads, what_an_executor_throws_comes_out_of_the_call_and_spoils_no_other) {
  int thrown = 0;
  for (int run = 0; run < 3; ++run) {
    Failing executor(run);
    try {
      attend({.executor = &executor});
    } catch (const std::runtime_error& error) {
      thrown += std::string_view(error.what()) == "the pool is closed";
    }
    EXPECT_TRUE(same_bits(attend(), alone)) << "after a failure in run " << run;
  }
  EXPECT_GT(thrown, 0);
}

TEST_F(Threads, every_task_runs_exactly_once) {
  for (const std::size_t tasks : {0u, 1u, 2u, 3u, 7u, 1000u}) {
    std::vector<std::atomic<int>> ran(tasks);
    threads::parallel_for(tasks, [&](std::size_t i) { ++ran[i]; });
    for (std::size_t i = 0; i < tasks; ++i) ASSERT_EQ(ran[i], 1) << "task " << i << " of " << tasks;
  }
}

// Threads look for the next job for some microseconds and then sleep: jobs come at both times, and just
// between.
TEST_F(Threads, every_task_runs_exactly_once_however_soon_jobs_follow_each_other) {
  set_num_threads(2);
  for (int job = 0; job < 4000; ++job) {
    std::vector<int> runs(static_cast<std::size_t>(1 + job % 7));
    threads::parallel_for(runs.size(), [&](std::size_t i) { ++runs[i]; });
    ASSERT_EQ(std::count(runs.begin(), runs.end(), 1), std::ssize(runs)) << "job " << job;
    if (job % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(job % 90));
  }
}

TEST_F(Threads, the_number_may_change_between_calls) {
  for (const int n : {2, 8, 1, 3}) {
    set_num_threads(n);
    EXPECT_EQ(num_threads(), n);
    EXPECT_TRUE(same_bits(attend(), alone)) << n << " threads";
  }
  EXPECT_THROW(set_num_threads(0), Error);
  EXPECT_THROW(set_num_threads(4097), Error);
  EXPECT_EQ(num_threads(), 3);
}

TEST_F(Threads, a_call_may_bring_an_executor_of_its_own) {
  Backwards of_process, of_call;
  set_executor(&of_process);
  EXPECT_TRUE(same_bits(attend({.executor = &of_call}), alone));
  EXPECT_EQ(of_process.ran, 0u);
  const std::size_t before = of_call.ran;
  EXPECT_GT(before, 1u);
  EXPECT_TRUE(same_bits(attend(), alone));
  EXPECT_GT(of_process.ran, 1u);
  EXPECT_EQ(of_call.ran, before);
}

// Runs nothing elsewhere; notes how many threads the call that it is asked by has.
struct Asking : Executor {
  int concurrency() const override { return num_threads(); }
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    if (num_threads() != expected) ++wrong;
    for (std::size_t i = 0; i < tasks; ++i) task(context, i);
  }
  int expected = 0;
  std::atomic<int> wrong{0};
};

// Says another number from the nth time on that it is asked: another thread may set one at any time.
struct Changing : Executor {
  Changing(int before, int from_then_on, int n) : before_(before), after_(from_then_on), left_(n) {}
  int concurrency() const override { return left_-- > 0 ? before_ : after_; }
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    for (std::size_t i = 0; i < tasks; ++i) task(context, i);
  }

 private:
  int before_, after_;
  mutable int left_;
};

TEST_F(Threads, the_number_may_change_in_the_middle_of_a_call) {
  for (int asked = 0; asked < 12; ++asked) {
    Changing more(1, 64, asked), fewer(64, 1, asked);
    EXPECT_TRUE(same_bits(attend({.executor = &more}), alone)) << "after asking " << asked << " times";
    EXPECT_TRUE(same_bits(attend({.executor = &fewer}), alone)) << "after asking " << asked << " times";
  }
}

TEST_F(Threads, calls_of_different_numbers_run_beside_each_other) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int n = 2; n < 8; ++n)
    callers.emplace_back([&, n] {
      Asking executor;
      executor.expected = n;
      for (int repeat = 0; repeat < 5; ++repeat) {
        wrong += !same_bits(attend({.threads = n, .executor = &executor}), alone);
        wrong += !same_bits(attend({.threads = n}), alone);
      }
      wrong += executor.wrong;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(num_threads(), 4);
  EXPECT_THROW(attend({.threads = -1}), Error);
  EXPECT_THROW(attend({.threads = 4097}), Error);
  EXPECT_EQ(num_threads(), 4);
}

// As many threads as a call says, and no more, whatever the process says.
TEST_F(Threads, a_call_has_as_many_as_it_says) {
  for (const int of_process : {1, 2, 6})
    for (const int of_call : {1, 2, 3, 5, 4, 1}) {
      set_num_threads(of_process);
      const threads::ForOneCall said(of_call, nullptr);
      EXPECT_EQ(threads::concurrency(), static_cast<std::size_t>(of_call));
      std::atomic<int> at_work{0}, most{0};
      threads::parallel_for(64, [&](std::size_t) {
        const int now = ++at_work;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (most < std::min(of_call, 2) && std::chrono::steady_clock::now() < deadline)
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        --at_work;
      });
      EXPECT_LE(most, of_call) << of_process << " threads of the process";
      EXPECT_GE(most, std::min(of_call, 2));
    }
  EXPECT_EQ(num_threads(), 6);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow a process with threads through fork
TEST_F(Threads, a_forked_child_has_threads_of_its_own) {
  ASSERT_TRUE(same_bits(attend(), alone));  // the parent's pool exists now
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a child that waits for its parent's threads would wait for ever
    _exit(same_bits(attend(), alone) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}
#endif

// What is alive since before the first call ends after everything that the library keeps for its own.
[[noreturn]] void call_at_the_end() {
  static std::vector<float> in_main, of_reference;
  std::atexit([] {
    const bool same =
        same_bits(attend(), in_main) && same_bits(attend({.kernel = "reference"}), of_reference);
    _exit(same && !kernel_names().empty() ? 0 : 1);
  });
  in_main = attend();
  of_reference = attend({.kernel = "reference"});
  std::exit(2);
}

TEST(Exit, calls_may_come_until_the_process_has_ended) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, where nothing was called before
  EXPECT_EXIT(call_at_the_end(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace heed
