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

// A pool of the caller's own:
//
//   struct OnPool : heed::Executor {
//     int concurrency() const override { return pool.size(); }
//     void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
//       pool.parallel_for(tasks, [=](std::size_t i) { task(context, i); });
//     }
//     MyPool& pool;
//   };
//
// run() must call task(context, i) once for every i in [0, tasks), in any order, on any threads, and return
// when all have returned. concurrency() is how many may run at once; more than that are only slower.
// - Both are called at once where several threads call heed at once.
// - run() is called on the thread that called heed, several times in a call, never from inside a task. Where
//   that thread is one of the pool's, which works on something that calls heed, it must not wait for tasks
//   that only itself could run.
// - A task does not throw, and waits for no other. What run() throws comes out of the call, whose outputs are
//   then unspecified; no task may be running any more, nor run later.
// - A task borrows the rounding and flush-to-zero modes of the thread that called heed, and puts back those
//   it found.
struct HEED_API Executor {
  virtual ~Executor() = default;
  virtual int concurrency() const = 0;
  virtual void run(std::size_t tasks, void (*task)(void* context, std::size_t i), void* context) = 0;
};

// Uses `executor` from now on; nullptr returns to heed's own pool. It must outlive every call made while it
// is set. Options::executor is that of one call.
HEED_API void set_executor(Executor* executor);

}  // namespace HEED_NAMESPACE
