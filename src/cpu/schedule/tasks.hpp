// SPDX-License-Identifier: Apache-2.0
// When a call is worth more than one thread, how its tasks reach the threads, and the memory they have.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/call.hpp"
#include "threads/memory.hpp"
#include "threads/pool.hpp"

namespace heed::cpu {

// At most: enough that the last task to end does not keep the other threads idle.
constexpr std::int64_t tasks_per_thread = 4;
// Below this many multiplications waking a thread (some 10 us) costs more than it saves.
constexpr double worth_sharing = 1e5;

inline double products(const Call& c) {
  return static_cast<double>(c.batch * c.heads) * static_cast<double>(c.queries) *
         static_cast<double>(c.keys) * static_cast<double>(c.dim + c.value_dim);
}

template <class Body>
void share_out(std::int64_t tasks, double multiplications, const Body& body) {
  const auto one = [&](std::size_t n) { body(static_cast<std::int64_t>(n)); };
  if (multiplications >= worth_sharing) return threads::parallel_for(static_cast<std::size_t>(tasks), one);
  for (std::int64_t n = 0; n < tasks; ++n) body(n);
}

// Where tasks are many and small, a thread takes a run of neighbours at a time, which lie side by side in
// memory.
constexpr std::int64_t runs_per_thread = 64;
constexpr double max_in_run = 2e6;  // multiplications

template <class Body>
void share_out_runs(std::int64_t tasks, double multiplications, const Body& body) {
  const auto threads = static_cast<std::int64_t>(threads::concurrency());
  const double each = std::max(1.0, multiplications / static_cast<double>(tasks));
  const auto small = static_cast<std::int64_t>(max_in_run / each);
  const std::int64_t run = std::max<std::int64_t>(1, std::min(small, tasks / (threads * runs_per_thread)));
  share_out((tasks + run - 1) / run, multiplications, [&](std::int64_t n) {
    for (std::int64_t i = n * run; i < std::min((n + 1) * run, tasks); ++i) body(i);
  });
}

// How many tasks may run at once. A single task needs no answer from the pool.
inline std::size_t slots_for(std::size_t tasks) {
  return tasks == 1 ? 1 : std::min(tasks, threads::concurrency());
}

// What the memory of a call's tasks holds. A driver names each region once; TaskMemory then says where it
// lies. Every region begins on a 64-byte line.
class Layout {
 public:
  // Of the call: all tasks see it.
  template <class T>
  struct Shared {
    std::size_t first = 0, count = 0;  // floats from the front; elements
  };
  // Of a slot: a task has it for itself.
  template <class T>
  struct OfSlot {
    std::size_t first = 0;  // floats from the front of the slot
  };

  template <class T>
  Shared<T> share(std::size_t count) {
    static_assert(alignof(T) <= line_bytes);
    return {grow<T>(shared_floats_, count), count};
  }
  template <class T>
  OfSlot<T> give_each_slot(std::int64_t count) {
    static_assert(alignof(T) <= line_bytes);
    return {grow<T>(slot_floats_, static_cast<std::size_t>(count))};
  }

 private:
  friend class TaskMemory;
  static constexpr std::size_t line_bytes = threads::line_floats * sizeof(float);

  template <class T>
  static std::size_t grow(std::size_t& floats, std::size_t count) {
    const std::size_t first = floats;
    floats += threads::floats_in_lines(count * sizeof(T));
    return first;
  }

  std::size_t shared_floats_ = 0, slot_floats_ = 0;
};

// The memory of a call's tasks, in one allocation: what they share, and a slot for each that runs at once.
// Nothing in it is initialised.
class TaskMemory {
 public:
  TaskMemory(std::size_t slots, const Layout& layout)
      : scratch_(slots, static_cast<std::int64_t>(layout.slot_floats_),
                 layout.shared_floats_ * sizeof(float)) {}

  template <class T>
  std::span<T> operator[](const Layout::Shared<T>& region) const {
    return {reinterpret_cast<T*>(scratch_.front<float>() + region.first), region.count};
  }

  // A slot, for as long as this lives: one for each task that runs.
  class Slot {
   public:
    explicit Slot(TaskMemory& memory) : lease_(memory.scratch_) {}
    std::size_t number() const { return lease_.slot(); }
    template <class T>
    T* operator[](const Layout::OfSlot<T>& region) const {
      return reinterpret_cast<T*>(lease_.floats() + region.first);
    }

   private:
    threads::Scratch::Lease lease_;
  };

 private:
  threads::Scratch scratch_;
};

}  // namespace heed::cpu
