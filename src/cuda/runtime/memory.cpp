// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/memory.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <list>
#include <new>

#include "cuda/runtime/captured.hpp"

namespace heed::cuda {
namespace {

void give_back(void* memory, std::size_t) noexcept { cudaFree(memory); }
void give_back_in_order(void* memory, std::size_t) noexcept { cudaFreeAsync(memory, nullptr); }

Memory allocated(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  check(error, "cudaMalloc");
  return {memory, {&give_back, bytes}};
}

// What is given back stays with the device's pool, for the calls that follow.
void keep_what_is_freed() {
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device_facts().ordinal), "cudaDeviceGetDefaultMemPool");
  std::uint64_t all = ~std::uint64_t{0};
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute");
}

struct StreamMemory {
  int device;
  unsigned long long stream;  // its number: handles of streams that are gone come again
  Memory memory;
  std::int64_t bytes;
};

// The one used last is first; a program that makes streams without end holds no more than this.
constexpr std::size_t max_streams = 32;

struct Workspaces {
  std::mutex in_use;
  std::list<StreamMemory> all;
};
Workspaces& workspaces() {
  static auto* const only = new Workspaces;  // outlives the runtime, which is gone when statics end
  return *only;
}

void clear_counters(std::byte* memory, Stream stream) {
  check(cudaMemsetAsync(memory, 0, Workspace::counter_bytes, stream), "cudaMemsetAsync");
}

}  // namespace

Memory take_memory(std::size_t bytes) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  keep_what_is_freed();
  void* memory = nullptr;
  const cudaError_t error = cudaMallocAsync(&memory, size, nullptr);
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  check(error, "cudaMallocAsync");
  return {memory, {&give_back_in_order, size}};
}

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
    clear_counters(static_cast<std::byte*>(memory.get()), stream_);
    own.memory = std::move(memory);  // what it was is freed when nobody uses it
    own.bytes = grown;
  }
  if (all.size() > max_streams) all.pop_back();
  workspace_ = {static_cast<std::byte*>(own.memory.get()), own.bytes};
}

}  // namespace heed::cuda
