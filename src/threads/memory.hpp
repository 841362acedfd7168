// SPDX-License-Identifier: Apache-2.0
// Memory that calls take and give back, and what of it their tasks have while they run.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace heed::threads {

struct ReturnMemory {
  std::size_t bytes = 0;
  void operator()(float* memory) const noexcept;
};
// Memory of calls that have ended, for the next ones: a fresh page faults once per 4 KiB, which cost a layer
// of 2 x 1024 tokens 2.5 % of its time and short calls more than their own work.
using ReusedMemory = std::unique_ptr<float[], ReturnMemory>;

// At least so many floats, on a 64-byte line, not initialised. Throws std::bad_alloc.
ReusedMemory take_memory(std::size_t floats);

// As many floats for so many bytes that a 64-byte line begins after them.
constexpr std::size_t line_floats = 16;
constexpr std::size_t floats_in_lines(std::size_t bytes) { return (bytes + 63) / 64 * line_floats; }

// What tasks need: allocated before any of them starts, so that a task never allocates, and shared by as many
// as can run at once.
class Scratch {
 public:
  // One slot for each task that may run at once, and bytes in front of them for all. Throws std::bad_alloc
  // before anything has run.
  Scratch(std::size_t slots, std::int64_t floats_per_slot, std::size_t front_bytes = 0);
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  class Lease {
   public:
    explicit Lease(Scratch& scratch) : scratch_(scratch), slot_(scratch.take()) {}
    ~Lease() { scratch_.taken(slot_).store(false, std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    std::size_t slot() const { return slot_; }
    float* floats() const { return scratch_.slots_begin_ + slot_ * scratch_.stride_; }

   private:
    Scratch& scratch_;
    std::size_t slot_;
  };

  template <class T>
  T* front() const {
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  std::size_t take();

  // Behind each slot's floats, on a line of its own: one that all threads wrote would travel from core to
  // core.
  std::atomic<bool>& taken(std::size_t slot) const {
    return *reinterpret_cast<std::atomic<bool>*>(slots_begin_ + (slot + 1) * stride_ - line_floats);
  }

  std::size_t slots_, stride_;
  ReusedMemory memory_;  // what is in front, then the slots
  float* slots_begin_;
};

}  // namespace heed::threads
