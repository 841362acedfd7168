// SPDX-License-Identifier: Apache-2.0
#include "threads/scratch.hpp"

#include <new>
#include <thread>

namespace heed::threads {

Scratch::Scratch(std::size_t slots, std::int64_t floats_per_slot)
    : slots_(slots),
      stride_((static_cast<std::size_t>(floats_per_slot) + 15) / 16 * 16),
      memory_(take_memory(slots_ * (stride_ + 1))),
      taken_(reinterpret_cast<std::atomic<bool>*>(memory_.get() + slots_ * stride_)) {
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
