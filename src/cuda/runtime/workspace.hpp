// SPDX-License-Identifier: Apache-2.0
// What a call works in. Calls on one stream follow each other, so they share memory that belongs to the
// stream; calls that a graph captures share what lives as long as the graph and whatever was made of it.
#pragma once
#include <cstdint>
#include <mutex>

#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

class CallWorkspace {
 public:
  CallWorkspace(std::int64_t bytes, Stream);  // only growing that of a stream asks for memory
  ~CallWorkspace();
  CallWorkspace(const CallWorkspace&) = delete;
  CallWorkspace& operator=(const CallWorkspace&) = delete;

  const Workspace& get() const;

 private:
  void take_of_stream(std::int64_t bytes);

  Stream stream_;
  std::unique_lock<std::mutex> lock_{};  // one thread launches at a time
  Workspace workspace_{};
  bool is_captured_ = false;
};

// At least `bytes`, the first counter_bytes of which are 0. Calls that one graph captures share it where each
// comes after the one before: that is asked of the graph, since streams cannot be told apart while
// they are captured. A handle comes again, and one stands for a stream of each thread; who asks for a
// stream's number ends the capture. Nodes of the graph that allocate and clear memory for each call would
// take 1.5 us of every replay (H200, November 2026).
Workspace captured_workspace(std::int64_t bytes, Stream);
// All of the call is captured: who comes after it may have its memory.
void captured_call_ends(const Workspace&, Stream) noexcept;

}  // namespace heed::cuda
