// SPDX-License-Identifier: Apache-2.0
// The pages of a cache on a CUDA device, on its legacy stream.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "backend/backend.hpp"
#include "cuda/backend.hpp"
#include "cuda/lower.hpp"
#include "cuda/runtime/arrays.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/kernels.hpp"
#include "refusal/refusal.hpp"

namespace heed::cuda {
namespace {

using backend::DeviceArray, backend::DevicePages, backend::DeviceSide, backend::NotFinite, cache::Side,
    cache::TokenRun;

int current_ordinal() {
  if (const Reason reason = unavailable())
    throw refusal(Error::device, "config.device: cuda, but ", reason());
  return device_facts().ordinal;
}

class CudaPages final : public DevicePages {
 public:
  explicit CudaPages(std::int64_t bytes)
      : ordinal_(current_ordinal()), memory_(take_memory(static_cast<std::size_t>(bytes))) {}

  unsigned char* memory() const override { return static_cast<unsigned char*>(memory_.get()); }

  void check_place(const char* name, const View& x) const override {
    if (x.shape.elements() == 0) return;
    if (const int ordinal = ordinal_of(name, x); ordinal != ordinal_)
      throw refusal(Error::device, name, ".data: it lies on CUDA device ", std::int64_t{ordinal},
                    ", the cache on ", std::int64_t{ordinal_});
  }

  void store(const DeviceSide& side, const View& from, std::span<const TokenRun> runs) const override {
    with_runs(side, from, runs, [](const PageTokens& tokens) { launch_store(tokens, nullptr); });
  }
  void fetch(const DeviceSide& side, const MutableView& into, std::span<const TokenRun> runs) const override {
    with_runs(side, into, runs, [](const PageTokens& tokens) { launch_fetch(tokens, nullptr); });
  }

  NotFinite find_not_finite(const View& x, std::int64_t b, std::int64_t count) const override {
    const Current device(ordinal_);
    const unsigned long long none = ~0ull;
    unsigned long long found = none;
    const Memory there = take_memory(sizeof found);
    auto* const first = static_cast<unsigned long long*>(there.get());
    check(cudaMemcpy(first, &none, sizeof none, cudaMemcpyHostToDevice), "cudaMemcpy");
    launch_find_not_finite({lower(x), b, x.shape.heads, count, x.shape.dim}, first, nullptr);
    check(cudaMemcpy(&found, first, sizeof found, cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (found == none) return {};
    const auto n = static_cast<std::int64_t>(found);
    return {n / count, n % count};
  }

  DeviceArray make(const Shape& shape, DType dtype) const override {
    const Current device(ordinal_);
    const auto bytes = static_cast<std::size_t>(shape.elements()) * bytes_of(dtype);
    std::shared_ptr<void> memory = take_memory(std::max<std::size_t>(bytes, 1));
    void* const data = memory.get();
    return {std::move(memory), {data, shape, dtype, Device::cuda}};
  }
  void copy(const unsigned char* from, unsigned char* into, std::int64_t bytes) const override {
    move(into, from, bytes, cudaMemcpyDeviceToDevice);
  }
  void send(const unsigned char* from, unsigned char* into, std::int64_t bytes) const override {
    move(into, from, bytes, cudaMemcpyHostToDevice);
  }
  void bring(const unsigned char* from, unsigned char* into, std::int64_t bytes) const override {
    move(into, from, bytes, cudaMemcpyDeviceToHost);
  }
  void clear(unsigned char* at, std::int64_t bytes) const override {
    const Current device(ordinal_);
    check(cudaMemsetAsync(at, 0, static_cast<std::size_t>(bytes), nullptr), "cudaMemsetAsync");
  }

 private:
  void move(unsigned char* into, const unsigned char* from, std::int64_t bytes, cudaMemcpyKind kind) const {
    const Current device(ordinal_);
    check(cudaMemcpyAsync(into, from, static_cast<std::size_t>(bytes), kind, nullptr), "cudaMemcpyAsync");
    if (kind != cudaMemcpyDeviceToDevice) check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  template <class Launch>
  void with_runs(const DeviceSide& side, const View& x, std::span<const TokenRun> runs,
                 const Launch& launch) const {
    if (runs.empty()) return;
    const Current device(ordinal_);
    const Memory there = take_memory(runs.size_bytes());
    auto* const list = static_cast<std::byte*>(there.get());
    upload(list,
           {.bytes = reinterpret_cast<const std::byte*>(runs.data()),
            .byte_count = static_cast<std::int64_t>(runs.size_bytes())},
           nullptr);
    const auto longer = [](const TokenRun& a, const TokenRun& b) { return a.count < b.count; };
    launch({side.layout, problem::type_of(side.type), side.side == Side::values, lower(x),
            reinterpret_cast<const TokenRun*>(list), std::ssize(runs),
            std::max_element(runs.begin(), runs.end(), longer)->count});
  }

  int ordinal_;
  Memory memory_;
};

}  // namespace

std::unique_ptr<DevicePages> make_pages(std::int64_t bytes) { return std::make_unique<CudaPages>(bytes); }

}  // namespace heed::cuda
