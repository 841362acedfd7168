// SPDX-License-Identifier: Apache-2.0
// A mask that heads and batch entries share costs each of them a look at every element across its rows. Where
// that pays, it is transposed into the order in which a panel's scores lie, once for all tasks of the same
// rows. Such tasks, one for each KV head of the batch entries that share the mask, are a stripe. They follow
// each other on a thread while there are any, and find the transposed mask in the cache of this core.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/isa/target.hpp"
#include "cpu/schedule/cut.hpp"

namespace heed::cpu {

// The transposed mask of a task of `rows` rows, one for every slot, without memory yet; empty where the mask
// is read as it lies.
SharedMask plan_shared_mask(const Call&, int panel_rows, std::int64_t rows, std::size_t slots);
std::int64_t bytes_of(const SharedMask&);

class Stripes {
 public:
  struct Stripe {
    std::int64_t begin = 0, end = 0;     // of its tasks
    std::int64_t queries = 0, cost = 0;  // of the first of them
    std::atomic<std::int64_t> taken = 0;

    Stripe() = default;
    Stripe(std::int64_t first, const QueryTask& task)
        : begin(first), end(first + 1), queries(task.rows.queries), cost(task.cost) {}
    std::int64_t remaining() const { return end - begin - taken.load(std::memory_order_relaxed); }
  };
  static constexpr std::int64_t none = -1;

  // Of tasks in the order in which they should run, those of a stripe side by side; `room` is for as many
  // stripes as there are tasks.
  Stripes(std::span<const QueryTask> tasks, const SharedMask&, std::span<Stripe> room);

  // The number of a task that nobody has; there must be one. It is of stripe `mine`, the one that was taken
  // from last, while that has any; otherwise `mine` becomes another.
  std::int64_t take(std::int64_t& mine) const;

 private:
  std::int64_t fullest() const;

  std::span<Stripe> stripes_;
};

// What a slot has of a shared mask, on a line of its own: the stripe it takes tasks from, and the panels that
// lie transposed in its memory, [begin, end) of a batch entry, or of all that share them.
struct alignas(64) MaskOfSlot {
  std::int64_t stripe = Stripes::none;
  std::int64_t owner = -1, begin = 0, end = 0;
};

// The call with the mask of a task's rows in the memory of a slot. It is transposed there unless the slot has
// it.
Call with_mask_of(const Rows&, const Call&, const Target&, MaskOfSlot&, void* memory);

}  // namespace heed::cpu
