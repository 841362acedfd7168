// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/arrays.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cuda/lower.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/kernels.hpp"
#include "refusal/refusal.hpp"
#include "rotary/rotary.hpp"

namespace heed::cuda {
namespace {

ArrayShape shape_of(const Shape& s) { return {s.batch, s.heads, s.length, s.dim}; }

// The CPU's array as it lies, on the device.
void copy_from_host(const View& from, const MutableView& into) {
  const Current device(ordinal_of("into", into));
  const auto bytes = static_cast<std::size_t>(reach_bytes(Argument("from", from)));
  const Memory on_device = take_memory(bytes);
  check(cudaMemcpyAsync(on_device.get(), from.data, bytes, cudaMemcpyHostToDevice, nullptr),
        "cudaMemcpyAsync");
  View moved = from;
  moved.data = on_device.get();
  launch_copy(lower(moved), lower(View(into)), shape_of(into.shape), nullptr);
}

// Without gaps first: those of the CPU's array are not ours to write.
void copy_to_host(const View& from, const MutableView& into) {
  const Current device(ordinal_of("from", from));
  const std::size_t element = bytes_of(into.dtype),
                    bytes = static_cast<std::size_t>(into.shape.elements()) * element;
  const Memory on_device = take_memory(bytes);
  launch_copy(lower(from), lower(View(on_device.get(), into.shape, into.dtype)), shape_of(into.shape),
              nullptr);
  std::vector<std::byte> here(bytes);
  check(cudaMemcpy(here.data(), on_device.get(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
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

// One past the last position; a position that has no successor is as long as lengths get.
std::int64_t length_of(std::span<const std::int64_t> positions) {
  const std::int64_t last = positions.empty() ? 0 : *std::ranges::max_element(positions);
  return last == std::numeric_limits<std::int64_t>::max() ? last : last + 1;
}

void add_rotations(std::span<const std::int64_t> positions, const rotary::Frequencies& f,
                   std::vector<Rotation>& rotations) {
  for (const std::int64_t position : positions)
    for (const double frequency : f.per_pair) {
      const double angle = static_cast<double>(position) * frequency;
      rotations.push_back({static_cast<float>(f.attention_factor * std::cos(angle)),
                           static_cast<float>(f.attention_factor * std::sin(angle))});
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

void add(const View& from, const MutableView& into) {
  const Current device(ordinal_of("into", into));
  launch_add(lower(from), lower(View(into)), shape_of(into.shape), nullptr);
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

// Rotary position embedding (S15). Sines and cosines are the host's, in double precision, as for the CPU.
void rotate(const MutableView& x, std::span<const std::int64_t> positions, const Rotary& rotary,
            std::span<const std::int64_t> lengths) {
  if (x.shape.elements() == 0) return;
  const std::int64_t dims = rotary.dims.value_or(x.shape.dim);
  const bool shares_positions = std::ssize(positions) == x.shape.length;
  const bool is_one = shares_positions && lengths.size() <= 1;
  std::vector<Rotation> rotations;
  for (std::int64_t b = 0; b < (is_one ? 1 : x.shape.batch); ++b) {
    const auto own = positions.subspan(static_cast<std::size_t>(shares_positions ? 0 : b * x.shape.length),
                                       static_cast<std::size_t>(x.shape.length));
    const std::int64_t length = lengths.empty()       ? length_of(own)
                                : lengths.size() == 1 ? lengths[0]
                                                      : lengths[static_cast<std::size_t>(b)];
    add_rotations(own, rotary::frequencies(rotary, dims, length), rotations);
  }
  const Current device(ordinal_of("x", x));
  const std::size_t bytes = rotations.size() * sizeof(Rotation);
  const Memory on_device = take_memory(bytes);
  check(cudaMemcpyAsync(on_device.get(), rotations.data(), bytes, cudaMemcpyHostToDevice, nullptr),
        "cudaMemcpyAsync");
  const bool in_halves = rotary.pairs == RotaryPairs::halves;
  launch_rotate(lower(View(x)), {x.shape.batch, x.shape.heads, x.shape.length, x.shape.dim},
                {static_cast<const Rotation*>(on_device.get()), is_one, dims / 2, in_halves ? 1 : 2,
                 in_halves ? dims / 2 : 1},
                nullptr);
}

}  // namespace heed::cuda
