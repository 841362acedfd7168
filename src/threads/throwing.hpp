// SPDX-License-Identifier: Apache-2.0
// Work on all threads that may throw, as kernels' tasks may not: rows of the reference, which allocate.
#pragma once
#include <atomic>
#include <exception>

#include "threads/pool.hpp"

namespace heed::threads {

// body(n) for every n below `tasks`. What a body throws is thrown to the caller once all have ended; tasks
// that have not begun by then do not run.
template <class Body>
void throwing_parallel_for(std::size_t tasks, const Body& body) {
  std::atomic<bool> has_failed = false;
  std::exception_ptr failure;
  parallel_for(tasks, [&](std::size_t n) {
    if (has_failed.load()) return;
    try {
      body(n);
    } catch (...) {
      if (!has_failed.exchange(true)) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace heed::threads
