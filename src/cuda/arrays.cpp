// SPDX-License-Identifier: Apache-2.0
#include "cuda/arrays.hpp"

#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "cuda/launch/arrays.hpp"
#include "cuda/lower.hpp"
#include "cuda/memory.hpp"
#include "cuda/places.hpp"
#include "refusal/argument.hpp"

namespace heed::cuda {
namespace {

ArrayShape shape_of(const Shape& s) { return {s.batch, s.heads, s.length, s.dim}; }

// The CPU's array as it lies, on the device.
void copy_from_host(const View& from, const MutableView& into) {
  const Current device(ordinal_of("into", into));
  const auto bytes = static_cast<std::size_t>(reach_bytes(Argument("from", from)));
  const Memory there = take_memory(bytes);
  check(cudaMemcpyAsync(there.get(), from.data, bytes, cudaMemcpyHostToDevice, nullptr), "cudaMemcpyAsync");
  View moved = from;
  moved.data = there.get();
  launch_copy(lower(moved), lower(View(into)), shape_of(into.shape), nullptr);
}

// Without gaps first: those of the CPU's array are not ours to write.
void copy_to_host(const View& from, const MutableView& into) {
  const Current device(ordinal_of("from", from));
  const std::size_t element = bytes_of(into.dtype),
                    bytes = static_cast<std::size_t>(into.shape.elements()) * element;
  const Memory there = take_memory(bytes);
  launch_copy(lower(from), lower(View(there.get(), into.shape, into.dtype)), shape_of(into.shape), nullptr);
  std::vector<std::byte> here(bytes);
  check(cudaMemcpy(here.data(), there.get(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  const Shape& s = into.shape;
  const Strides& stride = into.stride;
  const std::byte* next = here.data();
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.length; ++i)
        for (std::int64_t d = 0; d < s.dim; ++d, next += element) {
          const std::int64_t at = b * stride.batch + h * stride.heads + i * stride.length + d * stride.dim;
          std::memcpy(static_cast<std::byte*>(into.data) + at * static_cast<std::int64_t>(element), next,
                      element);
        }
}

}  // namespace

void copy(const View& from, const MutableView& into) {
  if (into.shape.elements() == 0) return;
  if (from.device == Device::cpu) return copy_from_host(from, into);
  if (into.device == Device::cpu) return copy_to_host(from, into);
  const Current device(ordinal_of("into", into));
  launch_copy(lower(from), lower(View(into)), shape_of(into.shape), nullptr);
}

void average_heads(const View& from, const MutableView& into) {
  const Current device(ordinal_of("into", into));
  launch_average(lower(from), lower(View(into)), shape_of(into.shape), from.shape.heads, nullptr);
}

void fill(const MutableView& x, float value) {
  const Current device(ordinal_of("x", x));
  launch_fill(lower(View(x)), shape_of(x.shape), value, nullptr);
}

void merge(const Outputs& into, const Results& other) {
  const Current device(ordinal_of("into.out", into.out));
  launch_merge({lower(View(into.out)), lower(View(*into.log_sum_exp))},
               {lower(other.out), lower(*other.log_sum_exp)}, shape_of(into.out.shape), nullptr);
}

}  // namespace heed::cuda
