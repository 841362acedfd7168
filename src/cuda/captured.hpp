// SPDX-License-Identifier: Apache-2.0
// What calls work in that a graph has captured: memory that lives as long as the graph and whatever was made
// of it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/launch/launch.hpp"

namespace heed::cuda {

bool is_capturing(Stream);

// At least so many bytes, the first counter_bytes of which are 0. Calls that one graph captures from one
// stream follow each other and share it. Nodes of the graph that allocate and clear it for each call would
// take 1.5 us of every replay (H200, November 2026).
Workspace captured_workspace(std::int64_t bytes, Stream);

}  // namespace heed::cuda
