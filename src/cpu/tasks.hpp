// SPDX-License-Identifier: Apache-2.0
// When a call is worth more than one thread, and how its tasks reach them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/call.hpp"
#include "threads/pool.hpp"

namespace heed::cpu {

// At most: enough that the last task to end does not leave the others idle.
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

// Where tasks are many and small, each thread takes a run of neighbours at a time, which lie side by side in
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

}  // namespace heed::cpu
