// SPDX-License-Identifier: Apache-2.0
// What calls work in that a graph has captured: memory that lives as long as the graph and whatever was made
// of it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

bool is_capturing(Stream);

// At least `bytes`, the first counter_bytes of which are 0. Calls that one graph captures share it where each
// comes after the one before: that is asked of the graph, since streams cannot be told apart while
// they are captured. A handle comes again, and one stands for a stream of each thread; who asks for a
// stream's number ends the capture. Nodes of the graph that allocate and clear memory for each call would
// take 1.5 us of every replay (H200, November 2026).
Workspace captured_workspace(std::int64_t bytes, Stream);
// All of the call is captured: who comes after it may have its memory.
void captured_call_ends(const Workspace&, Stream) noexcept;

}  // namespace heed::cuda
