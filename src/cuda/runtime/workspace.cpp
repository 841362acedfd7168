// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/workspace.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "backend/backend.hpp"

namespace heed::cuda {
namespace {

struct Block {
  int device;
  std::byte* memory;
  std::int64_t bytes;
};

// What comes next in a capture comes after these nodes.
using Nodes = std::vector<cudaGraphNode_t>;

// A block of a graph and the end of the call that used it last; none, while that is being captured. Captures
// have numbers that do not come again.
struct Captured {
  unsigned long long capture;
  Block block;
  Nodes end;
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
constexpr std::size_t max_recent = 32;

struct Capture {
  unsigned long long number = 0;
  cudaGraph_t graph = nullptr;
  Nodes here{};
};

// Edges may carry when a launch has waited long enough; nodes with such edges cannot be asked for without
// them.
#if CUDART_VERSION >= 13000
constexpr auto capture_info = cudaStreamGetCaptureInfo;
constexpr auto dependencies_of = cudaGraphNodeGetDependencies;
#else
constexpr auto capture_info = cudaStreamGetCaptureInfo_v3;
constexpr auto dependencies_of = cudaGraphNodeGetDependencies_v2;
#endif

Capture capture_of(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture found;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  check(capture_info(stream, &status, &found.number, &found.graph, &nodes, &edges, &count),
        "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive)  // and no graph will come of it
    check(cudaErrorStreamCaptureInvalidated, "cudaStreamGetCaptureInfo");
  found.here.assign(nodes, nodes + count);
  return found;
}

Nodes nodes_before(cudaGraphNode_t node) {
  std::size_t count = 0;
  check(dependencies_of(node, nullptr, nullptr, &count), "cudaGraphNodeGetDependencies");
  Nodes nodes(count);
  std::vector<cudaGraphEdgeData> edges(count);
  if (count > 0)
    check(dependencies_of(node, nodes.data(), edges.data(), &count), "cudaGraphNodeGetDependencies");
  return nodes;
}

// Whether all of `end` lies on the way back from `here`. Looked for no further than this: who is farther away
// has a block of its own.
constexpr std::size_t max_nodes_back = 512;

bool comes_after(const Nodes& here, const Nodes& end) {
  Nodes seen = here;
  const auto is_seen = [&](cudaGraphNode_t node) { return std::ranges::find(seen, node) != seen.end(); };
  for (std::size_t n = 0; n < seen.size() && n < max_nodes_back; ++n) {
    if (std::ranges::all_of(end, is_seen)) return true;
    for (const cudaGraphNode_t before : nodes_before(seen[n]))
      if (!is_seen(before)) seen.push_back(before);
  }
  return std::ranges::all_of(end, is_seen);
}

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

std::vector<Captured> candidates(unsigned long long capture, std::int64_t bytes) {
  const std::lock_guard lock(blocks().in_use);
  std::vector<Captured> found;
  for (const Captured& c : blocks().recent)
    if (c.capture == capture && c.block.bytes >= bytes && !c.end.empty()) found.push_back(c);
  return found;
}

// Unless another thread was faster.
bool is_taken_up(const Captured& candidate) {
  const std::lock_guard lock(blocks().in_use);
  for (Captured& c : blocks().recent)
    if (c.capture == candidate.capture && c.block.memory == candidate.block.memory &&
        c.end == candidate.end) {
      c.end.clear();
      return true;
    }
  return false;
}

}  // namespace

Workspace captured_workspace(std::int64_t bytes, Stream stream) {
  const Capture capture = capture_of(stream);
  for (const Captured& candidate : candidates(capture.number, bytes))
    if (comes_after(capture.here, candidate.end) && is_taken_up(candidate))
      return {candidate.block.memory, candidate.block.bytes};
  const Block block = take_block(device_facts().ordinal, bytes);
  give_to_graph(capture.graph, block);
  const std::lock_guard lock(blocks().in_use);
  blocks().recent.push_front({capture.number, block, {}});
  if (blocks().recent.size() > max_recent) blocks().recent.pop_back();
  return {block.memory, block.bytes};
}

void captured_call_ends(const Workspace& workspace, Stream stream) noexcept {
  try {
    const Capture capture = capture_of(stream);
    const std::lock_guard lock(blocks().in_use);
    for (Captured& c : blocks().recent)
      if (c.capture == capture.number && c.block.memory == workspace.memory) c.end = capture.here;
  } catch (const std::exception&) {
    // Nobody comes after a call that is not captured whole.
  }
}

// Of streams: the one used last is first.

namespace {

void give_back(void* memory, std::size_t) noexcept { cudaFree(memory); }

Memory allocated(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  check(error, "cudaMalloc");
  return {memory, {&give_back, bytes}};
}

struct StreamMemory {
  int device;
  unsigned long long stream;  // its number: handles of streams that are gone come again
  Memory memory;
  std::int64_t bytes;
};

// A program that makes streams without end holds no more than this.
constexpr std::size_t max_streams = 32;

struct Workspaces {
  std::mutex in_use;
  std::list<StreamMemory> all;
};
Workspaces& workspaces() {
  static auto* const only = new Workspaces;  // outlives the runtime, which is gone when statics end
  return *only;
}

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

CallWorkspace::CallWorkspace(std::int64_t bytes, Stream stream) : stream_(stream) {
  is_captured_ = is_capturing(stream);
  if (is_captured_)
    workspace_ = captured_workspace(bytes, stream);
  else
    take_of_stream(bytes);
}

CallWorkspace::~CallWorkspace() {
  if (is_captured_) captured_call_ends(workspace_, stream_);
}

const Workspace& CallWorkspace::get() const { return workspace_; }

void CallWorkspace::take_of_stream(std::int64_t bytes) {
  const int device = device_facts().ordinal;
  unsigned long long number = 0;
  check(cudaStreamGetId(stream_, &number), "cudaStreamGetId");
  lock_ = std::unique_lock(workspaces().in_use);
  std::list<StreamMemory>& all = workspaces().all;
  const auto found = std::find_if(all.begin(), all.end(), [&](const StreamMemory& m) {
    return m.device == device && m.stream == number;
  });
  if (found == all.end())
    all.push_front({device, number, {}, 0});
  else
    all.splice(all.begin(), all, found);
  StreamMemory& own = all.front();
  if (own.bytes < bytes) {
    const std::int64_t grown = std::max(bytes, 2 * own.bytes);
    Memory memory = allocated(static_cast<std::size_t>(grown));
    check(cudaMemsetAsync(memory.get(), 0, Workspace::counter_bytes, stream_), "cudaMemsetAsync");
    own.memory = std::move(memory);  // what it was is freed when nobody uses it
    own.bytes = grown;
  }
  if (all.size() > max_streams) all.pop_back();
  workspace_ = {static_cast<std::byte*>(own.memory.get()), own.bytes};
}

}  // namespace heed::cuda
