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
void meet();                            // until all threads of the block that still run are here
bool any(bool one);                     // likewise
void meet(int barrier, int threads);    // until so many have come to this barrier
void let_go(int barrier, int threads);  // comes there and goes on
float exchange(float x, int bits);      // until all threads of the warp are here

}  // namespace heed::cuda::emulated
