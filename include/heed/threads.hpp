// SPDX-License-Identifier: Apache-2.0
// How many threads heed uses, and whose. The number never changes a bit of any result (O1).
#pragma once
#include <cstddef>

#include "heed/export.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// Default: HEED_NUM_THREADS, else what affinity and the cgroup allow. n is in [1, 4096]; 1 never wakes one.
HEED_API void set_num_threads(int n);
HEED_API int num_threads();  // inside a call, for an executor that asks: those of the call (Options::threads)

// A pool of the caller's own. run() must call task(context, i) once for every i in [0, tasks), on any
// threads, and return when all have returned. A task borrows the rounding and flush-to-zero modes of the
// thread that called heed, and puts back those it found.
struct HEED_API Executor {
  virtual ~Executor() = default;
  virtual int concurrency() const = 0;
  virtual void run(std::size_t tasks, void (*task)(void* context, std::size_t i), void* context) = 0;
};

// Uses `executor` from now on; nullptr returns to heed's own pool. It must outlive every call made while it
// is set. Options::executor is that of one call.
HEED_API void set_executor(Executor* executor);

}  // namespace HEED_NAMESPACE
