// SPDX-License-Identifier: Apache-2.0
#include "threads/pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
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
#include "threads/allowed.hpp"
#include "threads/float_mode.hpp"

namespace heed::threads {
namespace {

struct Job {
  void (*task)(void*, std::size_t);
  void* context;
  std::size_t tasks;
  int helpers = 0;                     // threads of heed's that may come
  FloatMode mode = FloatMode::here();  // the caller's
  std::atomic<std::size_t> next{0};

  void work() {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) task(context, i);
  }
  // On a thread of heed's.
  void work_elsewhere() {
    const BorrowedFloatMode borrowed(mode);
    work();
  }
  // Whose threads an executor has, and which tasks each of them runs, is not known here.
  static void run_one(void* job, std::size_t i) {
    const Job& self = *static_cast<Job*>(job);
    const BorrowedFloatMode borrowed(self.mode);
    self.task(self.context, i);
  }
};

thread_local bool inside_a_run = false;

// What the call that this thread makes says; see ForOneCall.
constinit thread_local int threads_of_call = 0;
constinit thread_local Executor* executor_of_call = nullptr;

void relax() {
#if defined(__aarch64__)
  asm volatile("yield");
#elif defined(__x86_64__)
  asm volatile("pause");
#endif
}

class Pool {
 public:
  // `threads` with the caller's own. `usual` is what the process says, when it is made.
  Pool(int threads, int usual) : threads_(threads), usual_(usual) {
    try {
      for (int n = 1; n < threads; ++n) workers_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {  // the system gives no more threads: fewer will do
    } catch (const std::bad_alloc&) {     // nor does it give memory
    }
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // Whether it is the one that the process wants, and has as many.
  bool serves(int threads, int usual) const { return usual_ == usual && threads_ >= threads; }

  void run(Job& job) {
    const int helpers = job.helpers;  // fewer from the moment that others see the job
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (helpers + 1 >= threads_)
      wake_.notify_all();
    else
      for (int n = 0; n < helpers; ++n) wake_.notify_one();
    job.work();
    std::unique_lock lock(mutex_);
    job_ = nullptr;  // whoever wakes from here on finds nothing to do
    left_.wait(lock, [this] { return users_ == 0; });
  }

 private:
  void serve() {
    inside_a_run = true;
    std::uint64_t seen = 0;
    for (;;) {
      // A decode step follows the last within microseconds: look for about 20 of them before sleeping.
      for (int spin = 0; spin < 2000 && generation_.load(std::memory_order_acquire) == seen; ++spin) relax();
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      seen = generation_.load(std::memory_order_relaxed);
      if (stop_) return;
      Job* job = job_;
      if (!job || job->helpers == 0) continue;
      --job->helpers;
      ++users_;
      lock.unlock();
      job->work_elsewhere();
      lock.lock();
      if (--users_ == 0) left_.notify_all();
    }
  }

  int threads_, usual_;  // that were asked for
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::atomic<std::uint64_t> generation_{0};
  Job* job_ = nullptr;
  int users_ = 0;
  bool stop_ = false;
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
    pthread_atfork(nullptr, nullptr, [] {
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

void ForOneCall::say(int threads, Executor* executor) noexcept {
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
  job.helpers = threads - 1;
  const std::unique_lock lock(owner().busy, std::try_to_lock);
  Pool* const pool = lock ? pool_of(threads) : nullptr;
  if (!pool) return job.work();
  inside_a_run = true;
  pool->run(job);
  inside_a_run = false;
}

}  // namespace heed::threads

namespace heed::inline v0_2 {

void set_num_threads(int n) {
  if (n < 1 || n > threads::most_threads)
    throw refusal(Error::value, "threads: ", std::int64_t{n}, " is outside [1, ",
                  std::int64_t{threads::most_threads}, "]");
  threads::owner().wanted.store(n);
}

int num_threads() {
  return threads::threads_of_call > 0 ? threads::threads_of_call : threads::threads_of_process();
}

void set_executor(Executor* executor) { threads::owner().executor.store(executor); }

}  // namespace heed::inline v0_2
