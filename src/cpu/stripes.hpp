// SPDX-License-Identifier: Apache-2.0
// Tasks of the same rows of a mask, one for each KV head of the batch entries that share it, are a stripe.
// They follow each other on a thread as long as there are any: what the first of them made of its rows, the
// others find in this core's cache.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/cut.hpp"

namespace heed::cpu {

class Stripes {
  struct Stripe {
    std::int64_t begin, end;     // of its tasks
    std::int64_t queries, cost;  // of the first of them
    std::atomic<std::int64_t> taken;

    Stripe(std::int64_t first, const QueryTask& task)
        : begin(first), end(first + 1), queries(task.rows.queries), cost(task.cost), taken(0) {}
    std::int64_t left() const { return end - begin - taken.load(std::memory_order_relaxed); }
  };

 public:
  static constexpr std::int64_t none = -1;
  static constexpr std::size_t bytes_for(std::size_t tasks) { return tasks * sizeof(Stripe); }

  // Of tasks in the order in which they should run, those of a stripe side by side, in memory of so many
  // bytes.
  Stripes(std::span<const QueryTask> tasks, const SharedMask&, void* memory);

  // The number of a task that nobody has; there must be one. Of `mine`, the stripe of the last one taken
  // here, if it has any left; else `mine` becomes another.
  std::int64_t take(std::int64_t& mine) const;

 private:
  std::int64_t fullest() const;

  std::span<Stripe> stripes_;
};

}  // namespace heed::cpu
