// SPDX-License-Identifier: Apache-2.0
// A block of threads on one CPU core: every thread is a fiber that runs until it must wait for others.
#pragma once
#include <cstdint>
#include <functional>

namespace heed::cuda::emulated {

// Runs body once for every thread of every block, the blocks one after the other.
void launch(std::int64_t blocks, int threads, const std::function<void()>& body);

int current_thread();
std::int64_t current_block();
void sync_block();                            // until all threads of the block that still run have arrived
bool any(bool one);                           // likewise
void named_sync(int barrier, int threads);    // until this many have arrived at this barrier
void named_arrive(int barrier, int threads);  // arrives and goes on
void step_aside();                            // all others run until they wait
float exchange(float x, int bits);            // until all threads of the warp have arrived

// What the threads of a warp show each other: all have arrived when the first returns, and none goes on
// before the last.
class Shown {
 public:
  explicit Shown(const void* mine);
  ~Shown();
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

  const void* of(int lane) const;
};

}  // namespace heed::cuda::emulated
