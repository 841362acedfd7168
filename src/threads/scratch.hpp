// SPDX-License-Identifier: Apache-2.0
// Memory that tasks need while they run: allocated before any of them starts, so that a task never allocates,
// and shared by as many as can run at once.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "threads/kept_memory.hpp"

namespace heed::threads {

class Scratch {
 public:
  // Throws std::bad_alloc before anything has run.
  Scratch(std::size_t slots, std::int64_t floats_per_slot);
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  class Lease {
   public:
    explicit Lease(Scratch& scratch) : scratch_(scratch), slot_(scratch.take()) {}
    ~Lease() { scratch_.taken_[slot_].store(false, std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    float* floats() const { return scratch_.memory_.get() + slot_ * scratch_.stride_; }

   private:
    Scratch& scratch_;
    std::size_t slot_;
  };

 private:
  std::size_t take();

  std::size_t slots_, stride_;
  KeptMemory memory_;  // the slots, then whether each is taken
  std::atomic<bool>* taken_;
};

}  // namespace heed::threads
