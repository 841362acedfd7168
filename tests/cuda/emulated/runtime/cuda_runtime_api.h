// SPDX-License-Identifier: Apache-2.0
// As much of CUDA's runtime as captures of graphs need, on a machine that has none: memory is the host's, and
// a stream captures a graph when the test says so.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#define CUDART_VERSION 13000

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorStreamCaptureInvalidated = 901 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
constexpr unsigned cudaStreamNonBlocking = 1, cudaUserObjectNoDestructorSync = 1, cudaGraphUserObjectMove = 1;

using cudaHostFn_t = void (*)(void*);
struct CUuserObject_st {
  void* held;
  cudaHostFn_t let_go;
};
using cudaUserObject_t = CUuserObject_st*;

struct CUgraphNode_st {
  std::vector<CUgraphNode_st*> after;
};
using cudaGraphNode_t = CUgraphNode_st*;
struct cudaGraphEdgeData {};

// A graph lets go of what it holds when it is gone.
struct CUgraph_st {
  unsigned long long capture;
  std::vector<cudaUserObject_t> holds{};
  std::deque<CUgraphNode_st> nodes{};

  explicit CUgraph_st(unsigned long long number) : capture(number) {}
  CUgraph_st(const CUgraph_st&) = delete;
  CUgraph_st& operator=(const CUgraph_st&) = delete;
  ~CUgraph_st() {
    for (const cudaUserObject_t object : holds) object->let_go(object->held), delete object;
  }
};
using cudaGraph_t = CUgraph_st*;

struct CUstream_st {
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> here{};

  // Captures one more node.
  void launch() {
    graph->nodes.push_back({here});
    here.assign(1, &graph->nodes.back());
  }
};
using cudaStream_t = CUstream_st*;

// One handle for a stream of each thread.
inline const auto cudaStreamPerThread = reinterpret_cast<cudaStream_t>(2);
inline thread_local CUstream_st stream_of_this_thread{};
inline cudaStream_t real(cudaStream_t stream) {
  return stream == cudaStreamPerThread ? &stream_of_this_thread : stream;
}

inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = real(stream)->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
inline cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* capture, cudaGraph_t* graph,
                                            const cudaGraphNode_t** nodes, const cudaGraphEdgeData**,
                                            std::size_t* count) {
  cudaStreamIsCapturing(stream, status);
  *graph = real(stream)->graph;
  if (*graph) *capture = (*graph)->capture;
  *nodes = real(stream)->here.data(), *count = real(stream)->here.size();
  return cudaSuccess;
}
inline cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                                cudaGraphEdgeData*, std::size_t* count) {
  for (std::size_t n = 0; nodes && n < node->after.size(); ++n) nodes[n] = node->after[n];
  *count = node->after.size();
  return cudaSuccess;
}
inline cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* number) {
  *number = reinterpret_cast<std::uintptr_t>(real(stream));
  return cudaSuccess;
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::memset(::operator new(bytes), 0xff, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  ::operator delete(memory);
  return cudaSuccess;
}
inline cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* held, cudaHostFn_t let_go, unsigned,
                                        unsigned) {
  *object = new CUuserObject_st{held, let_go};
  return cudaSuccess;
}
inline cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned) {
  object->let_go(object->held);
  delete object;
  return cudaSuccess;
}
inline cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned, unsigned) {
  graph->holds.push_back(object);
  return cudaSuccess;
}
