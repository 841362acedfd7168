// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>

#include "cuda/runtime/launch.hpp"
#include "heed/error.hpp"
#include "refusal/refusal.hpp"

namespace heed::cuda {
namespace {

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, ordinal), "cudaDeviceGetAttribute");
  return value;
}

int ordinal_of_address(const char* name, const void* data) {
  cudaPointerAttributes found{};
  check(cudaPointerGetAttributes(&found, data), "cudaPointerGetAttributes");
  if (found.type != cudaMemoryTypeDevice && found.type != cudaMemoryTypeManaged)
    throw refusal(Error::device, name, ".data: the address is in no CUDA device's memory");
  return found.device;
}

// What HEED_CUDA_ARCH names; major 0: nothing.
struct Imitated {
  int major, minor, shared_bytes;
};
Imitated imitated_architecture() {
  const char* const name = std::getenv("HEED_CUDA_ARCH");
  if (!name || !*name) return {0, 0, 0};
  for (const Imitated& each : {Imitated{8, 0, 164 * 1024}, {8, 6, 100 * 1024}, {8, 9, 100 * 1024}})
    if (std::to_string(each.major * 10 + each.minor) == name) return each;
  throw Error(Error::device, std::string("HEED_CUDA_ARCH: it is 80, 86 or 89; ") + name + " was given");
}

// The ordinal of the first of several, and that the others have it.
class OneDevice {
 public:
  void add(const char* name, const void* data) {
    if (data == nullptr) return;
    const int ordinal = ordinal_of_address(name, data);
    if (!first_name_) first_name_ = name, ordinal_ = ordinal;
    if (ordinal != ordinal_)
      throw refusal(Error::device, name, ".data: it lies on CUDA device ", std::int64_t{ordinal}, ", ",
                    first_name_, " on ", std::int64_t{ordinal_});
  }
  void add(const char* name, const View& x) {
    if (x.shape.elements() > 0) add(name, x.data);
  }
  template <class AnyView>
  void add(const char* name, const std::optional<AnyView>& x) {
    if (x) add(name, View(*x));
  }
  // That of the current device where nothing lies anywhere.
  int ordinal() const {
    if (first_name_) return ordinal_;
    int current = 0;
    check(cudaGetDevice(&current), "cudaGetDevice");
    return current;
  }

 private:
  const char* first_name_ = nullptr;
  int ordinal_ = 0;
};

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
  DeviceFacts facts{ordinal, attribute(cudaDevAttrMultiProcessorCount, ordinal),
                    attribute(cudaDevAttrComputeCapabilityMajor, ordinal),
                    attribute(cudaDevAttrComputeCapabilityMinor, ordinal),
                    attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, ordinal)};
  static const Imitated imitated = imitated_architecture();
  if (imitated.major != 0) {
    facts.major = imitated.major, facts.minor = imitated.minor;
    facts.shared_bytes = std::min(facts.shared_bytes, imitated.shared_bytes);
  }
  return facts;
}

namespace {

void add_forward(const Problem& p, OneDevice& one) {
  one.add("q", p.inputs.q);
  one.add("k", p.inputs.k);
  one.add("v", p.inputs.v);
  one.add("out", View(p.outputs.out));
  one.add("weights", p.outputs.weights);
  one.add("log_sum_exp", p.outputs.log_sum_exp);
  one.add("scores", p.outputs.scores.into);
  one.add("options.bias", p.options.bias);
  one.add("options.sink", p.options.sink);
  for (const BoolMask& mask : p.bool_masks)
    if (mask.device == Device::cuda) one.add("options.masks", mask.data);
  for (std::size_t n = 0; p.reading && n < p.sequences.size(); ++n)
    if (p.sequences[n].keys > 0) one.add("cache", p.cached[n].table[0]);
}

}  // namespace

int ordinal_of(const Problem& p) {
  OneDevice one;
  add_forward(p, one);
  return one.ordinal();
}

int ordinal_of(const GradientProblem& g) {
  OneDevice one;
  add_forward(g.forward, one);
  one.add("gradients.out", g.out_gradient);
  one.add("gradients.log_sum_exp", g.log_sum_exp_gradient);
  one.add("gradients.q", g.given.q);
  one.add("gradients.k", g.given.k);
  one.add("gradients.v", g.given.v);
  one.add("gradients.bias", g.given.bias);
  one.add("gradients.sink", g.given.sink);
  return one.ordinal();
}

int ordinal_of(const char* name, const View& x) {
  OneDevice one;
  one.add(name, x);
  return one.ordinal();
}

Current::Current(int ordinal) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (ordinal != before_) check(cudaSetDevice(ordinal), "cudaSetDevice");
}

Current::~Current() { cudaSetDevice(before_); }

namespace {

// On the device where it lies: another one is perhaps current by now, whose stream waits for other launches.
void give_back_in_order(void* memory, std::size_t) noexcept {
  cudaPointerAttributes at{};
  int before = 0;
  const bool is_elsewhere = cudaGetDevice(&before) == cudaSuccess &&
                            cudaPointerGetAttributes(&at, memory) == cudaSuccess && at.device != before;
  if (is_elsewhere) cudaSetDevice(at.device);
  cudaFreeAsync(memory, nullptr);
  if (is_elsewhere) cudaSetDevice(before);
}

// What is given back stays with the device's pool, for the calls that follow.
void keep_what_is_freed() {
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device_facts().ordinal), "cudaDeviceGetDefaultMemPool");
  std::uint64_t all = ~std::uint64_t{0};
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute");
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

}  // namespace heed::cuda
