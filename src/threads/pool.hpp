// SPDX-License-Identifier: Apache-2.0
// heed's own threads. Tasks are taken from one counter, so whoever is free takes the next; since a task's
// result depends on nothing but the task, the order changes no bit.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

#include "heed/threads.hpp"
#include "threads/relax.hpp"

namespace heed::threads {

// How a thread rounds, and whether it flushes subnormal numbers to zero: a register of its own, which a new
// thread copies from the one that makes it and nobody changes afterwards. The threads that work for a call
// borrow the caller's, or its answer would depend on who did what (S13). The modes alone: flags of what has
// happened stay with the thread it happened to.
struct FloatMode {
#if defined(__x86_64__)
  static constexpr std::uint32_t flags = 0x3f;
  std::uint32_t bits;

  static constexpr std::uint32_t masks = 0x1f80;  // of exceptions that do not trap

  static FloatMode here() { return {_mm_getcsr() & ~flags}; }
  FloatMode without_traps() const { return {bits | masks}; }
  void enter() const { _mm_setcsr((_mm_getcsr() & flags) | bits); }
#elif defined(__aarch64__)
  static constexpr std::uint64_t traps = 0x9f00;
  std::uint64_t bits;

  FloatMode without_traps() const { return {bits & ~traps}; }
  static FloatMode here() {
    std::uint64_t fpcr;
    asm volatile("mrs %0, fpcr" : "=r"(fpcr)::"memory");
    return {fpcr};
  }
  void enter() const { asm volatile("msr fpcr, %0" ::"r"(bits) : "memory"); }
#else
  int bits;

  static FloatMode here() { return {std::fegetround()}; }
  FloatMode without_traps() const { return *this; }
  void enter() const { std::fesetround(bits); }
#endif
  bool operator==(const FloatMode&) const = default;
};

// Puts the thread it is made on into a mode until it goes. Writing the register is not cheap; reading is.
class BorrowedFloatMode {
 public:
  explicit BorrowedFloatMode(FloatMode mode) : BorrowedFloatMode(FloatMode::here(), mode) {}
  ~BorrowedFloatMode() {
    if (is_another_) own_.enter();
  }
  BorrowedFloatMode(const BorrowedFloatMode&) = delete;
  BorrowedFloatMode& operator=(const BorrowedFloatMode&) = delete;

  // The thread's own, but that no exception traps: lanes that hold no row compute with whatever is in them,
  // and a caller who wants to hear of its own NaNs is not to hear of those.
  static BorrowedFloatMode without_traps() {
    const FloatMode own = FloatMode::here();
    return {own, own.without_traps()};
  }

 private:
  BorrowedFloatMode(FloatMode own, FloatMode mode) : own_(own), is_another_(mode != own) {
    if (is_another_) mode.enter();
  }

  FloatMode own_;
  bool is_another_;
};

// Calls task(context, i) for every i in [0, tasks) and returns when all have returned. Runs inline when there
// is one task or one thread, inside another run, or while another caller holds the pool. Tasks run in the
// caller's floating-point mode, whosever thread they are on.
void run_tasks(std::size_t tasks, void (*task)(void* context, std::size_t i), void* context);

// How many tasks may run at once.
std::size_t concurrency();

// What one call says about threads, on the thread that makes it and for as long as this lives. 0 and nullptr:
// what the process says. Meanwhile no floating-point exception traps, here or on a thread that works for the
// call.
class ForOneCall {
 public:
  ForOneCall(int threads, Executor* executor) : is_set_(threads != 0 || executor) {
    if (is_set_) set(threads, executor);
  }
  ~ForOneCall() {
    if (is_set_) set(threads_before_, executor_before_);
  }
  ForOneCall(const ForOneCall&) = delete;
  ForOneCall& operator=(const ForOneCall&) = delete;

 private:
  void set(int threads, Executor*) noexcept;

  BorrowedFloatMode mode_ = BorrowedFloatMode::without_traps();
  bool is_set_;
  int threads_before_ = 0;
  Executor* executor_before_ = nullptr;
};

// While one lives, heed's threads that find nothing to do look on for 2 ms before they sleep. For a call of
// many runs that follow each other: where all processors are busy, a thread that is woken starts beside
// another (8 processes of 2 threads on a Xeon's 16 logical CPUs, 34 runs in 206 ms: 245 ms where they sleep;
// November 2026).
class StayAwake {
 public:
  StayAwake();
  ~StayAwake();
  StayAwake(const StayAwake&) = delete;
  StayAwake& operator=(const StayAwake&) = delete;
};

template <class Body>
void parallel_for(std::size_t tasks, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  run_tasks(
      tasks, [](void* context, std::size_t i) { (*static_cast<Plain*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// Work on all threads that may throw, as kernels' tasks may not: rows of the reference, which allocate.

// body(n) for every n below `tasks`. What a body throws is thrown to the caller once all have ended; tasks
// that have not begun by then do not run.
template <class Body>
void throwing_parallel_for(std::size_t tasks, const Body& body) {
  std::atomic<bool> has_failed = false;
  std::exception_ptr failure;
  parallel_for(tasks, [&](std::size_t n) {
    if (has_failed.load()) return;
    try {
      body(n);
    } catch (...) {
      if (!has_failed.exchange(true)) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace heed::threads
