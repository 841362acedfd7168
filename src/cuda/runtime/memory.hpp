// SPDX-License-Identifier: Apache-2.0
// Memory on the current device.
#pragma once
#include <cstdint>
#include <mutex>

#include "backend/backend.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

// Memory for what is launched on the legacy stream. Given back, it is reused in the order of launches,
// without waiting. Throws std::bad_alloc where there is no room.
Memory take_memory(std::size_t bytes);

// What a call works in. Calls on one stream follow each other, so they share one that belongs to the stream;
// only growing it asks for memory. Calls that a graph captures share what lives as long as the graph.
class CallWorkspace {
 public:
  CallWorkspace(std::int64_t bytes, Stream);
  ~CallWorkspace();
  CallWorkspace(const CallWorkspace&) = delete;
  CallWorkspace& operator=(const CallWorkspace&) = delete;

  const Workspace& get() const { return workspace_; }

 private:
  void take_of_stream(std::int64_t bytes);

  Stream stream_;
  std::unique_lock<std::mutex> lock_{};  // one thread launches at a time
  Workspace workspace_{};
  bool is_captured_ = false;
};

}  // namespace heed::cuda
