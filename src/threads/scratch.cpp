// SPDX-License-Identifier: Apache-2.0
#include "threads/scratch.hpp"

#include <new>
#include <thread>

namespace heed::threads {
namespace {

// The slot that this thread had last is tried first: the others have theirs, and what a task left there is in
// this core's cache.
constinit thread_local std::size_t last_slot = 0;

}  // namespace

Scratch::Scratch(std::size_t slots, std::int64_t floats_per_slot, std::size_t front_bytes)
    : slots_(slots),
      stride_(floats_in_lines(static_cast<std::size_t>(floats_per_slot) * sizeof(float)) + line_floats),
      memory_(take_memory(floats_in_lines(front_bytes) + slots_ * stride_)),
      slots_begin_(memory_.get() + floats_in_lines(front_bytes)) {
  for (std::size_t slot = 0; slot < slots_; ++slot) new (&taken(slot)) std::atomic<bool>(false);
}

std::size_t Scratch::take() {
  for (;;) {
    for (std::size_t n = 0; n < slots_; ++n) {
      const std::size_t slot = (last_slot + n) % slots_;
      if (!taken(slot).exchange(true, std::memory_order_acquire)) return last_slot = slot;
    }
    std::this_thread::yield();  // a foreign executor may run more tasks at once than it said
  }
}

}  // namespace heed::threads
