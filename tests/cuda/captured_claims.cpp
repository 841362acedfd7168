// SPDX-License-Identifier: Apache-2.0
// What calls work in that a graph has captured: calls that may run side by side never share it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "claims.hpp"
#include "cuda/runtime/workspace.hpp"

namespace heed::cuda {

// As runtime/device.cpp has it of a real device.
DeviceFacts device_facts() { return {0, 132, 9, 0, 228 << 10}; }
void check(int code, const char* call) {
  if (code != cudaSuccess) throw std::runtime_error(call);
}

namespace test {
namespace {

using claims::expect;

// The memory that a call of two launches works in.
std::byte* captured_call(std::int64_t bytes, cudaStream_t stream) {
  const Workspace found = captured_workspace(bytes, stream);
  real(stream)->launch(), real(stream)->launch();
  captured_call_ends(found, stream);
  return found.memory;
}

CLAIM(calls_that_a_graph_captures_one_after_another_share_their_memory) {
  CUgraph_st graph(1);
  CUstream_st stream{&graph};
  std::byte* const first = captured_call(20000, &stream);
  for (int n = 0; n < 100; ++n) stream.launch();  // of others
  expect(captured_call(17000, &stream) == first, "a call that needs less has its own");
  expect(captured_call(30000, &stream) != first, "a call that needs more has no more");
}

CLAIM(calls_that_may_run_side_by_side_have_memory_of_their_own) {
  CUgraph_st graph(2);
  CUstream_st stream{&graph};
  stream.launch();
  CUstream_st other = stream;
  std::byte *const first = captured_call(20000, &stream), *const second = captured_call(20000, &other);
  expect(first != second, "one for two");
  other.here.push_back(stream.here.front());  // it waits for the stream
  std::byte* const third = captured_call(20000, &other);
  expect(third == first || third == second, "who comes after both has more memory still");
}

CLAIM(a_call_that_is_being_captured_keeps_its_memory_to_itself) {
  CUgraph_st graph(3);
  CUstream_st stream{&graph};
  captured_call(20000, &stream);
  const Workspace taken = captured_workspace(20000, &stream);
  CUstream_st other = stream;
  expect(captured_call(20000, &other) != taken.memory, "a thread beside it has the same");
}

// A stream may end before its capture does, and the next one has its handle.
CLAIM(a_stream_with_the_handle_of_one_that_is_gone_has_memory_of_its_own) {
  CUgraph_st graph(4);
  CUstream_st stream{&graph};
  stream.launch();
  const auto fork = stream.here;
  std::byte* const before = captured_call(20000, &stream);
  stream.here = fork;
  expect(captured_call(20000, &stream) != before, "it has what calls of another stream use");
}

CLAIM(threads_that_name_their_own_streams_alike_have_memory_of_their_own) {
  CUgraph_st graph(5);
  std::byte* memory[2]{};
  for (std::byte*& each : memory)
    std::thread([&] {
      stream_of_this_thread.graph = &graph;
      each = captured_call(20000, cudaStreamPerThread);
    }).join();
  expect(memory[0] != memory[1], "two threads share it");
}

CLAIM(a_graph_that_is_gone_leaves_its_memory_to_the_next) {
  std::byte* before = nullptr;
  {
    CUgraph_st graph(6);
    CUstream_st stream{&graph};
    before = captured_workspace(70000, &stream).memory;
  }
  CUgraph_st next(7);
  CUstream_st stream{&next};
  const Workspace found = captured_workspace(70000, &stream);
  expect(found.memory == before, "memory that nobody uses is left where it is");
}

CLAIM(counters_are_0_at_first) {
  CUgraph_st graph(8);
  CUstream_st stream{&graph};
  const Workspace found = captured_workspace(90000, &stream);
  expect(std::all_of(found.memory, found.memory + Workspace::counter_bytes,
                     [](std::byte x) { return x == std::byte{0}; }),
         "they are whatever was there");
}

}  // namespace
}  // namespace test
}  // namespace heed::cuda
