// SPDX-License-Identifier: Apache-2.0
// Messages move while a rank computes: the thread that called heed looks after them between two tasks. MPI
// moves what is under way only when somebody asks, and all others wait for a rank that does not.
#pragma once
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "heed/threads.hpp"
#include "threads/pool.hpp"

namespace heed::ranks {

class MovingExecutor final : public Executor {
 public:
  // What options say about threads, with move() in between; what it throws, run() throws when all tasks have
  // run.
  MovingExecutor(int threads, Executor* of_caller, std::function<void()> move)
      : threads_(threads), of_caller_(of_caller), move_(std::move(move)) {}

  int concurrency() const override {
    const threads::ForOneCall for_call(threads_in_number(), of_caller_);
    return static_cast<int>(threads::concurrency());
  }

  void run(std::size_t tasks, void (*task)(void* context, std::size_t i), void* context) override {
    const threads::ForOneCall for_call(threads_in_number(), of_caller_);
    const std::thread::id caller = std::this_thread::get_id();
    std::exception_ptr fault;
    threads::parallel_for(tasks, [&](std::size_t n) {
      task(context, n);
      if (std::this_thread::get_id() != caller || fault || !is_due()) return;
      try {
        move_();
      } catch (...) {
        fault = std::current_exception();
      }
    });
    if (fault) std::rethrow_exception(fault);
  }

 private:
  // A number even where options say none: this executor is then no more that of the call.
  int threads_in_number() const { return threads_ > 0 ? threads_ : num_threads(); }

  // Short tasks do not pay for a look each.
  bool is_due() {
    const auto now = std::chrono::steady_clock::now();
    if (now - moved_ < std::chrono::microseconds(300)) return false;
    moved_ = now;
    return true;
  }

  const int threads_;
  Executor* const of_caller_;
  const std::function<void()> move_;
  std::chrono::steady_clock::time_point moved_{};
};

}  // namespace heed::ranks
