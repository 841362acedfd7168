// SPDX-License-Identifier: Apache-2.0
// Tensors as heed sees them: views that own nothing. Axes are always (batch, heads, length, dim); memory
// order is only the strides.
#pragma once
#include <cstddef>
#include <cstdint>

namespace heed {

enum class DType : std::uint8_t { f32, f16, bf16 };
enum class Device : std::uint8_t { cpu, cuda };

constexpr std::size_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }
const char* name_of(DType);  // "f32", "f16", "bf16"

// Four extents, or four strides counted in elements.
struct Shape {
  std::int64_t batch = 1, heads = 1, length = 1, dim = 1;
  friend constexpr bool operator==(const Shape&, const Shape&) = default;
  constexpr std::int64_t elements() const { return batch * heads * length * dim; }
};

// Strides of a packed tensor with heads outside length, and with length outside heads (what a projection
// produces).
constexpr Shape bhsd(Shape s) { return {s.heads * s.length * s.dim, s.length * s.dim, s.dim, 1}; }
constexpr Shape bshd(Shape s) { return {s.length * s.heads * s.dim, s.dim, s.heads * s.dim, 1}; }

struct View {
  const void* data = nullptr;
  Shape shape{}, stride{};
  DType dtype = DType::f32;
  Device device = Device::cpu;
};

struct MutableView {
  void* data = nullptr;
  Shape shape{}, stride{};
  DType dtype = DType::f32;
  Device device = Device::cpu;
  operator View() const { return {data, shape, stride, dtype, device}; }
};

// Which keys each query may see, (batch, heads, queries, keys). An extent of 1 broadcasts.
struct BoolView {
  const bool* data = nullptr;
  Shape shape{}, stride{};
};

}  // namespace heed
