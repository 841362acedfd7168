// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads/scratch.hpp"

#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace heed::cpu {
namespace {

constexpr std::align_val_t alignment{64};
constexpr std::size_t kept_at_most = std::size_t{16} << 20;  // bytes

// The last call's memory, kept for the next one: a page fault per 4 KiB on every call costs more than the
// call's own work when calls are short.
struct Kept {
  std::mutex mutex;
  void* memory = nullptr;
  std::size_t bytes = 0;
  ~Kept() { ::operator delete(memory, alignment); }
};

Kept& kept() {
  static Kept only;
  return only;
}

}  // namespace

Scratch::Scratch(std::size_t slots, std::int64_t floats_per_slot)
    : slots_(slots),
      stride_((static_cast<std::size_t>(floats_per_slot) + 15) / 16 * 16),
      memory_(nullptr),
      taken_(std::make_unique<std::atomic<bool>[]>(slots)) {
  const std::size_t bytes = slots_ * stride_ * sizeof(float);
  {
    const std::unique_lock lock(kept().mutex, std::try_to_lock);  // may be held for ever in a forked child
    if (lock && kept().bytes >= bytes) {
      memory_ = static_cast<float*>(std::exchange(kept().memory, nullptr));
      kept_bytes_ = std::exchange(kept().bytes, 0);
    }
  }
  if (memory_) return;
  memory_ = static_cast<float*>(::operator new(bytes, alignment));
  kept_bytes_ = bytes;
}

Scratch::~Scratch() {
  void* unwanted = memory_;
  if (kept_bytes_ <= kept_at_most) {
    const std::unique_lock lock(kept().mutex, std::try_to_lock);
    if (lock && kept_bytes_ > kept().bytes) {
      unwanted = std::exchange(kept().memory, memory_);
      kept().bytes = kept_bytes_;
    }
  }
  ::operator delete(unwanted, alignment);
}

std::size_t Scratch::take() {
  for (;;) {
    for (std::size_t slot = 0; slot < slots_; ++slot)
      if (!taken_[slot].exchange(true, std::memory_order_acquire)) return slot;
    std::this_thread::yield();  // a foreign executor may run more tasks at once than it said
  }
}

}  // namespace heed::cpu
