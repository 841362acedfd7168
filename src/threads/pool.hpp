// SPDX-License-Identifier: Apache-2.0
// heed's own threads. Tasks are taken from one counter, so whoever is free takes the next; since a task's
// result depends on nothing but the task, the order changes no bit.
#pragma once
#include <cstddef>
#include <type_traits>

namespace heed::threads {

// Calls task(context, i) for every i in [0, tasks) and returns when all have returned. Runs inline when there
// is one task or one thread, inside another run, or while another caller holds the pool. Tasks run in the
// caller's floating-point mode, whosever thread they are on.
void run_tasks(std::size_t tasks, void (*task)(void* context, std::size_t i), void* context);

// How many tasks may run at once.
std::size_t concurrency();

template <class Body>
void parallel_for(std::size_t tasks, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  run_tasks(
      tasks, [](void* context, std::size_t i) { (*static_cast<Plain*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace heed::threads
