// SPDX-License-Identifier: Apache-2.0
#include "cuda/captured.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <new>

namespace heed::cuda {
namespace {

struct Block {
  int device;
  std::byte* memory;
  std::int64_t bytes;
};

// A block in use, and who may use it further. Captures have numbers that do not come again.
struct Captured {
  unsigned long long capture;
  Stream stream;
  Block block;
};

// Blocks of graphs that are gone wait here for other graphs: what tells that a graph is gone may not call
// CUDA. Nobody calls CUDA while the mutex is held, since that thread may be what CUDA waits for.
struct Blocks {
  std::mutex in_use;
  std::list<Captured> recent;
  std::list<Block> unused;
};
Blocks& blocks() {
  static auto* const only = new Blocks;  // graphs may outlive statics
  return *only;
}
constexpr std::size_t most_recent = 32;

// Of one thread: calls that a capture on it would otherwise forbid.
class Relaxed {
 public:
  Relaxed() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;
  ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Cleared at once, and not by the graph.
void clear_counters(std::byte* memory) {
  cudaStream_t aside = nullptr;
  check(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  cudaError_t error = cudaMemsetAsync(memory, 0, Workspace::counter_bytes, aside);
  if (error == cudaSuccess) error = cudaStreamSynchronize(aside);
  cudaStreamDestroy(aside);
  check(error, "cudaMemsetAsync");
}

Block new_block(int device, std::int64_t bytes) {
  const Relaxed while_allocating;
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  check(error, "cudaMalloc");
  const Block made{device, static_cast<std::byte*>(memory), bytes};
  try {
    clear_counters(made.memory);
  } catch (...) {
    cudaFree(made.memory);
    throw;
  }
  return made;
}

Block take_block(int device, std::int64_t bytes) {
  {
    const std::lock_guard lock(blocks().in_use);
    std::list<Block>& unused = blocks().unused;
    const auto found = std::find_if(unused.begin(), unused.end(),
                                    [&](const Block& b) { return b.device == device && b.bytes >= bytes; });
    if (found != unused.end()) {
      const Block taken = *found;
      unused.erase(found);
      return taken;
    }
  }
  return new_block(device, bytes);
}

void graph_is_gone(void* held) {
  const std::unique_ptr<Block> block(static_cast<Block*>(held));
  const std::lock_guard lock(blocks().in_use);
  blocks().unused.push_back(*block);
}

// The block waits in `unused` again as soon as neither the graph nor what was made of it is there; at once,
// where the graph does not take it.
void give_to_graph(cudaGraph_t graph, const Block& block) {
  auto held = std::make_unique<Block>(block);
  cudaUserObject_t object = nullptr;
  const cudaError_t made =
      cudaUserObjectCreate(&object, held.get(), graph_is_gone, 1, cudaUserObjectNoDestructorSync);
  if (made != cudaSuccess) graph_is_gone(held.release());
  check(made, "cudaUserObjectCreate");
  held.release();
  const cudaError_t taken = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (taken != cudaSuccess) cudaUserObjectRelease(object, 1);
  check(taken, "cudaGraphRetainUserObject");
}

}  // namespace

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

Workspace captured_workspace(std::int64_t bytes, Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  cudaGraph_t graph = nullptr;
  check(cudaStreamGetCaptureInfo(stream, &status, &capture, &graph), "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive)  // and no graph will come of it
    check(cudaErrorStreamCaptureInvalidated, "cudaStreamGetCaptureInfo");
  {
    const std::lock_guard lock(blocks().in_use);
    for (const Captured& c : blocks().recent)
      if (c.capture == capture && c.stream == stream && c.block.bytes >= bytes)
        return {c.block.memory, c.block.bytes};
  }
  const Block block = take_block(device_facts().ordinal, bytes);
  give_to_graph(graph, block);
  const std::lock_guard lock(blocks().in_use);
  blocks().recent.push_front({capture, stream, block});
  if (blocks().recent.size() > most_recent) blocks().recent.pop_back();
  return {block.memory, block.bytes};
}

}  // namespace heed::cuda
