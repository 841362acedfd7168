// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "cuda/launch/launch.hpp"
#include "heed/error.hpp"

namespace heed::cuda {
namespace {

constexpr std::int64_t max_at_once = 4000;  // bytes of a launch's arguments

struct Bytes {
  std::byte data[max_at_once];
};

__global__ void put(std::byte* to, const __grid_constant__ Bytes from, int bytes) {
  for (int n = static_cast<int>(threadIdx.x); n < bytes; n += static_cast<int>(blockDim.x))
    to[n] = from.data[n];
}

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, ordinal), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

void check(int code, const char* call) {
  if (code == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(code);
  throw Error(Error::device, std::string(call) + ": " + cudaGetErrorString(error) + " (" +
                                 cudaGetErrorName(error) + ", " + std::to_string(code) + ")");
}

DeviceFacts device_facts() {
  int ordinal = 0;
  check(cudaGetDevice(&ordinal), "cudaGetDevice");
  return {ordinal, attribute(cudaDevAttrMultiProcessorCount, ordinal),
          attribute(cudaDevAttrComputeCapabilityMajor, ordinal),
          attribute(cudaDevAttrComputeCapabilityMinor, ordinal)};
}

void upload(std::byte* to, const std::byte* from, std::int64_t bytes, Stream stream) {
  for (std::int64_t at = 0; at < bytes; at += max_at_once) {
    const std::int64_t count = std::min(max_at_once, bytes - at);
    Bytes some;
    std::memcpy(some.data, from + at, static_cast<std::size_t>(count));
    put<<<1, 256, 0, stream>>>(to + at, some, static_cast<int>(count));
    check(cudaGetLastError(), "upload");
  }
}

}  // namespace heed::cuda
