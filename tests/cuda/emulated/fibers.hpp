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
float exchange(float x, int bits);            // until all threads of the warp have arrived

}  // namespace heed::cuda::emulated
