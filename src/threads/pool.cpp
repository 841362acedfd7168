// SPDX-License-Identifier: Apache-2.0
#include "threads/pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "heed/threads.hpp"
#include "refusal/refusal.hpp"
#include "system/system.hpp"
#include "threads/allowed.hpp"
#include "threads/tsan.hpp"

namespace heed::threads {
namespace {

constexpr std::size_t line_bytes = 64;

thread_local bool inside_a_run = false;

struct Job {
  void (*task)(void*, std::size_t);
  void* context;
  std::size_t tasks;
  FloatMode mode = FloatMode::here();  // the caller's
  std::atomic<int> helpers{0};         // threads of heed's that may come
  // Apart from what every task reads: a line that all write travels from core to core.
  alignas(line_bytes) std::atomic<std::size_t> next{0};

  void work() {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) task(context, i);
  }
  // On a thread of heed's, unless enough have come.
  void help() {
    if (helpers.fetch_sub(1, std::memory_order_relaxed) <= 0) return;
    const BorrowedFloatMode borrowed(mode);
    work();
  }
  // Whose threads an executor has, and which tasks each of them runs, is not known here.
  static void run_one(void* job, std::size_t i) {
    const Job& self = *static_cast<Job*>(job);
    const BorrowedFloatMode borrowed(self.mode);
    const bool was_inside = std::exchange(inside_a_run, true);
    self.task(self.context, i);
    inside_a_run = was_inside;
  }
};

std::atomic<int> calls_that_stay_awake{0};

// What the call that this thread makes says; see ForOneCall.
constinit thread_local int threads_of_call = 0;
constinit thread_local Executor* executor_of_call = nullptr;

// Whoever waits for something first says so and then looks at it again, and whoever brings it about first
// does and then looks for who waits; in one order of all (seq_cst), so at least one of the two sees the
// other. A mutex is taken only to sleep and to wake: sixteen threads that took one for every job spent 0.1 ms
// on it.
class Pool {
 public:
  // `threads` with the caller's own. `usual` is what the process says, when it is made.
  Pool(int threads, int usual)
      : threads_(threads),
        usual_(usual),
        looks_(static_cast<unsigned>(threads) <= std::thread::hardware_concurrency() ? 1000 : 0) {
    try {
      for (int n = 1; n < threads; ++n) workers_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {  // the system gives no more threads: fewer will do
    } catch (const std::bad_alloc&) {     // nor does it give memory
    }
  }

  ~Pool() {
    stop_ = true;
    ++generation_;
    wake(threads_);
    for (std::thread& worker : workers_) worker.join();
  }

  // Whether it is the one that the process wants, and has as many.
  bool serves(int threads, int usual) const { return usual_ == usual && threads_ >= threads; }

  void run(Job& job) {
    const int helpers = job.helpers.load();  // fewer from the moment that others see the job
    tell_tsan_before(&job);
    job_ = &job;
    ++generation_;
    wake(helpers);
    job.work();
    job_ = nullptr;  // whoever comes from here on finds nothing to do
    wait_until_unused();
    tell_tsan_after(&job);
  }

 private:
  void wake(int helpers) {
    if (sleepers_ == 0) return;
    const std::lock_guard lock(mutex_);  // one that is about to sleep does so first
    if (helpers + 1 >= threads_)
      wake_.notify_all();
    else
      for (int n = 0; n < helpers; ++n) wake_.notify_one();
  }

  void serve() {
    inside_a_run = true;
    for (std::uint64_t seen = 0;;) {
      wait_for_another(seen);
      seen = generation_;
      if (stop_) return;
      ++users_;  // from here on the job that is found stays
      if (Job* const job = job_) {
        tell_tsan_after(job);
        job->help();
        tell_tsan_before(job);
      }
      if (--users_ == 0 && caller_sleeps_) {
        const std::lock_guard lock(mutex_);
        left_.notify_one();
      }
    }
  }

  // Being put to sleep and woken takes longer than some 20 us of looking, unless the others need this core.
  template <class Found>
  bool comes_soon(const Found& found) const {
    for (int n = 0; n < looks_; ++n) {
      if (found()) return true;
      relax();
    }
    if (looks_ > 0 && calls_that_stay_awake > 0) return comes_while_awake(found);
    return found();
  }

  // Leaves the core to whoever else wants it in between, and most of what it has to the thread beside this.
  template <class Found>
  static bool comes_while_awake(const Found& found) {
    const auto begun = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(2)) {
      for (int n = 0; n < 32; ++n) {
        if (found()) return true;
        relax();
      }
      std::this_thread::yield();
    }
    return found();
  }

  // A decode step follows the last within microseconds.
  void wait_for_another(std::uint64_t seen) {
    const auto came = [&] { return generation_ != seen; };
    if (comes_soon(came)) return;
    std::unique_lock lock(mutex_);
    ++sleepers_;
    wake_.wait(lock, came);
    --sleepers_;
  }

  void wait_until_unused() {
    const auto unused = [&] { return users_ == 0; };
    if (comes_soon(unused)) return;
    std::unique_lock lock(mutex_);
    caller_sleeps_ = true;
    left_.wait(lock, unused);
    caller_sleeps_ = false;
  }

  const int threads_, usual_;  // that were asked for
  const int looks_;            // before sleeping
  std::atomic<bool> stop_{false};
  alignas(line_bytes) std::atomic<std::uint64_t> generation_{0};  // of jobs
  std::atomic<Job*> job_{nullptr};
  alignas(line_bytes) std::atomic<int> users_{0};  // of the job
  std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::vector<std::thread> workers_;
};

// The process's pool and who may use it. Remade when the number of threads changes, when a call asks for more
// than there are, and in a forked child, where the parent's threads do not exist: there the old pool is
// forgotten, not joined.
struct Owner {
  std::mutex busy;
  Pool* pool = nullptr;
  std::atomic<int> wanted{0};
  std::atomic<Executor*> executor{nullptr};
};

Owner& owner() {
  static Owner* const instance = [] {
    system::in_forked_children([] {
      new (&owner().busy) std::mutex;
      owner().pool = nullptr;
    });
    static Owner only;
    std::atexit([] {
      const std::unique_lock lock(only.busy, std::try_to_lock);  // another thread may still be at work
      if (lock) delete std::exchange(only.pool, nullptr);
    });
    return &only;
  }();
  return *instance;
}

int threads_of_process() {
  std::atomic<int>& wanted = owner().wanted;
  if (wanted.load() == 0) {
    int none = 0;
    wanted.compare_exchange_strong(none, allowed_threads());
  }
  return wanted.load();
}

// One with at least so many threads, or nullptr where there is no memory even for the pool itself. Its owner
// must be locked.
Pool* pool_of(int threads) {
  Owner& o = owner();
  const int usual = threads_of_process();
  if (o.pool && o.pool->serves(threads, usual)) return o.pool;
  delete std::exchange(o.pool, nullptr);
  o.pool = new (std::nothrow) Pool(std::max(threads, usual), usual);
  return o.pool;
}

Executor* executor() { return executor_of_call ? executor_of_call : owner().executor.load(); }

}  // namespace

StayAwake::StayAwake() { ++calls_that_stay_awake; }
StayAwake::~StayAwake() { --calls_that_stay_awake; }

void ForOneCall::set(int threads, Executor* executor) noexcept {
  threads_before_ = std::exchange(threads_of_call, threads);
  executor_before_ = std::exchange(executor_of_call, executor);
}

std::size_t concurrency() {
  if (Executor* given = executor()) return static_cast<std::size_t>(std::max(1, given->concurrency()));
  return static_cast<std::size_t>(num_threads());
}

void run_tasks(std::size_t tasks, void (*task)(void*, std::size_t), void* context) {
  Job job{task, context, tasks};
  if (tasks <= 1 || inside_a_run) return job.work();
  if (Executor* given = executor()) return given->run(tasks, &Job::run_one, &job);
  const int threads = num_threads();
  if (threads == 1) return job.work();
  job.helpers = static_cast<int>(std::min(static_cast<std::size_t>(threads), tasks)) - 1;
  const std::unique_lock lock(owner().busy, std::try_to_lock);
  Pool* const pool = lock ? pool_of(threads) : nullptr;
  if (!pool) return job.work();
  inside_a_run = true;
  pool->run(job);
  inside_a_run = false;
}

}  // namespace heed::threads

namespace HEED_NAMESPACE {

void set_num_threads(int n) {
  if (n < 1 || n > threads::max_threads)
    throw refusal(Error::value, "threads: ", std::int64_t{n}, " is outside [1, ",
                  std::int64_t{threads::max_threads}, "]");
  threads::owner().wanted.store(n);
}

int num_threads() {
  return threads::threads_of_call > 0 ? threads::threads_of_call : threads::threads_of_process();
}

void set_executor(Executor* executor) { threads::owner().executor.store(executor); }

}  // namespace HEED_NAMESPACE
