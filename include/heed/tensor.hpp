// SPDX-License-Identifier: Apache-2.0
// Tensors as heed sees them: views that own nothing. Axes are always (batch, heads, length, dim); memory
// order is only the strides.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <type_traits>

#include "heed/elements.hpp"

namespace heed {

enum class Device : std::uint8_t { cpu, cuda };

constexpr std::size_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }
const char* name_of(DType);  // "f32", "f16", "bf16"

struct Shape {
  std::int64_t batch = 1, heads = 1, length = 1, dim = 1;
  friend constexpr bool operator==(const Shape&, const Shape&) = default;
  constexpr std::int64_t elements() const { return batch * heads * length * dim; }
};

// How far apart neighbours along each axis lie, counted in elements.
struct Strides {
  std::int64_t batch = 0, heads = 0, length = 0, dim = 0;
  friend constexpr bool operator==(const Strides&, const Strides&) = default;
};

// Strides of a packed tensor with heads outside length, and with length outside heads (what a projection
// produces).
constexpr Strides bhsd(const Shape& s) { return {s.heads * s.length * s.dim, s.length * s.dim, s.dim, 1}; }
constexpr Strides bshd(const Shape& s) { return {s.length * s.heads * s.dim, s.dim, s.heads * s.dim, 1}; }

// Throws Error where `held` elements are fewer than such a view reaches over.
void check_holds(std::size_t held, const Shape&, const Strides&);

template <class Memory>
struct BasicView {
  Memory* data = nullptr;
  Shape shape{};
  Strides stride{};
  DType dtype = DType::f32;
  Device device = Device::cpu;

  BasicView() = default;

  // Packed, as bhsd() has it.
  template <views::ElementsFor<Memory> From>
  constexpr BasicView(From&& from, const Shape& extents) : BasicView(from, extents, bhsd(extents)) {}

  // The size of anything that knows its size is checked.
  template <views::ElementsFor<Memory> From>
  constexpr BasicView(From&& from, const Shape& extents, const Strides& strides)
      : shape(extents), stride(strides), dtype(views::dtype_of<From>()) {
    if constexpr (views::Pointer<From>) {
      data = from;
    } else {
      data = std::ranges::data(from);
      check_holds(std::ranges::size(from), extents, strides);
    }
  }

  // Memory whose type only its owner knows.
  template <class Untyped>
    requires(std::is_void_v<Untyped> || std::same_as<std::remove_const_t<Untyped>, std::byte>)
  constexpr BasicView(Untyped* from, const Shape& extents, const Strides& strides, DType type,
                      Device where = Device::cpu)
      : data(from), shape(extents), stride(strides), dtype(type), device(where) {}

  // What may be written may be read.
  template <class Mutable>
    requires(std::is_const_v<Memory> && std::same_as<Mutable, BasicView<void>>)
  constexpr BasicView(const Mutable& other)
      : data(other.data), shape(other.shape), stride(other.stride), dtype(other.dtype), device(other.device) {}
};

using View = BasicView<const void>;
using MutableView = BasicView<void>;

// Which keys each query may see, (batch, heads, queries, keys). An extent of 1 broadcasts.
struct BoolView {
  const bool* data = nullptr;
  Shape shape{};
  Strides stride{};

  BoolView() = default;
  constexpr BoolView(const bool* from, const Shape& extents) : BoolView(from, extents, bhsd(extents)) {}
  constexpr BoolView(const bool* from, const Shape& extents, const Strides& strides)
      : data(from), shape(extents), stride(strides) {}
};

// A view that need not be given: a std::optional that takes what a view takes, .weights = {w, {.length = 3}}.
template <class AnyView>
struct Optional : std::optional<AnyView> {
  using std::optional<AnyView>::optional;
  constexpr Optional(const std::optional<AnyView>& other) : std::optional<AnyView>(other) {}

  template <class From>
    requires std::constructible_from<AnyView, From, const Shape&>
  constexpr Optional(From&& from, const Shape& extents) : Optional(AnyView(from, extents)) {}
  template <class From>
    requires std::constructible_from<AnyView, From, const Shape&, const Strides&>
  constexpr Optional(From&& from, const Shape& extents, const Strides& strides)
      : Optional(AnyView(from, extents, strides)) {}
};

}  // namespace heed
