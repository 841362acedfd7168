// SPDX-License-Identifier: Apache-2.0
#include "threads/scratch.hpp"

#include <new>
#include <thread>

namespace heed::threads {

Scratch::Scratch(std::size_t slots, std::int64_t floats_per_slot, std::size_t front_bytes)
    : slots_(slots),
      stride_(floats_in_lines(static_cast<std::size_t>(floats_per_slot) * sizeof(float))),
      memory_(take_memory(floats_in_lines(front_bytes) + slots_ * (stride_ + 1))),
      slots_begin_(memory_.get() + floats_in_lines(front_bytes)),
      taken_(reinterpret_cast<std::atomic<bool>*>(slots_begin_ + slots_ * stride_)) {
  for (std::size_t slot = 0; slot < slots_; ++slot) new (taken_ + slot) std::atomic<bool>(false);
}

std::size_t Scratch::take() {
  for (;;) {
    for (std::size_t slot = 0; slot < slots_; ++slot)
      if (!taken_[slot].exchange(true, std::memory_order_acquire)) return slot;
    std::this_thread::yield();  // a foreign executor may run more tasks at once than it said
  }
}

}  // namespace heed::threads
