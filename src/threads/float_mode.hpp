// SPDX-License-Identifier: Apache-2.0
// How a thread rounds, and whether it flushes subnormal numbers to zero: a register of its own, which a new
// thread copies from the one that makes it and nobody changes afterwards. The threads that work for a call
// borrow the caller's, or its answer would depend on who did what (S13).
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace heed::threads {

// The modes alone: flags of what has happened stay with the thread it happened to.
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

}  // namespace heed::threads
