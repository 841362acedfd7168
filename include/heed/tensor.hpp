// SPDX-License-Identifier: Apache-2.0
// Tensors as heed sees them: views that own nothing. Axes are always (batch, heads, length, dim); memory
// order is only the strides.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <type_traits>

#include "heed/elements.hpp"
#include "heed/export.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

enum class Device : std::uint8_t { cpu, cuda };

namespace elements {

// a * b for extents. The largest number in place of one beyond it, so that a shape too large for any memory
// is still that where it is refused; 0 where an extent is negative.
constexpr std::int64_t product(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  if (a <= 0 || b <= 0) return 0;
  return a > most / b ? most : a * b;
}

}  // namespace elements

struct Shape {
  std::int64_t batch = 1, heads = 1, length = 1, dim = 1;
  friend constexpr bool operator==(const Shape&, const Shape&) = default;
  constexpr std::int64_t elements() const {
    using elements::product;
    return product(product(batch, heads), product(length, dim));
  }
};

// How far apart neighbours along each axis lie, counted in elements. An axis of one entry needs no stride;
// one of more that was not given is refused.
struct Strides {
  static constexpr std::int64_t not_given = -1;
  std::int64_t batch = not_given, heads = not_given, length = not_given, dim = not_given;
  friend constexpr bool operator==(const Strides&, const Strides&) = default;
};

// Strides of a packed tensor with heads outside length, and with length outside heads (what a projection
// produces).
constexpr Strides bhsd(const Shape& s) {
  const std::int64_t head = elements::product(s.length, s.dim);
  return {elements::product(s.heads, head), head, s.dim, 1};
}
constexpr Strides bshd(const Shape& s) {
  const std::int64_t token = elements::product(s.heads, s.dim);
  return {elements::product(s.length, token), s.dim, token, 1};
}

namespace elements {

template <class From>
constexpr auto* first_of(From& from) {
  if constexpr (Pointer<From>)
    return from;
  else
    return std::data(from);
}

// What a view was made of, if that knew its size: the call that is given the view refuses it by name where it
// reaches further.
class Held {
 public:
  static constexpr std::int64_t unknown = -1;

  constexpr Held() = default;
  template <class From>
  constexpr explicit Held(From& from) {
    if constexpr (!Pointer<From>) {
      first_ = std::data(from);
      count_ = static_cast<std::int64_t>(std::size(from));
    }
  }
  // From an address on: unknown where it is another than the first.
  constexpr std::int64_t from(const void* data) const { return data == first_ ? count_ : unknown; }

 private:
  const void* first_ = nullptr;
  std::int64_t count_ = unknown;
};

}  // namespace elements

// Memory is void where the view is written and const void where it is only read. A view made of nothing is
// one that was not given.
template <class Memory>
struct BasicView {
  Memory* data = nullptr;
  Shape shape{};
  Strides stride{};
  DType dtype = DType::f32;
  Device device = Device::cpu;
  elements::Held held{};

  BasicView() = default;

  // Numbers of a type that heed knows, packed as bhsd() has it unless strides say otherwise.
  template <elements::Numbers From>
    requires std::is_convertible_v<elements::ElementOf<From>*, Memory*>
  constexpr BasicView(From&& from, const Shape& extents) : BasicView(from, extents, bhsd(extents)) {}
  template <elements::Numbers From>
    requires std::is_convertible_v<elements::ElementOf<From>*, Memory*>
  constexpr BasicView(From&& from, const Shape& extents, const Strides& strides)
      : data(elements::first_of(from)),
        shape(extents),
        stride(strides),
        dtype(elements::dtype_of<std::remove_const_t<elements::ElementOf<From>>>),
        held(from) {}

  // void* or std::byte*: memory whose type only its owner knows.
  template <elements::Untyped Bytes>
    requires std::is_convertible_v<Bytes*, Memory*>
  constexpr BasicView(Bytes* from, const Shape& extents, DType type, Device where = Device::cpu)
      : BasicView(from, extents, bhsd(extents), type, where) {}
  template <elements::Untyped Bytes>
    requires std::is_convertible_v<Bytes*, Memory*>
  constexpr BasicView(Bytes* from, const Shape& extents, const Strides& strides, DType type,
                      Device where = Device::cpu)
      : data(from), shape(extents), stride(strides), dtype(type), device(where) {}

  // Anything else ends here, and compilers print the line.
  template <class From>
  BasicView(From&&, const Shape&) = delete;  // no f32, f16, bf16 or f64; or const; or gone at the end of it
  template <class From>
  BasicView(From&&, const Shape&, const Strides&) = delete;  // likewise

  // What may be written may be read.
  constexpr operator BasicView<const void>() const
    requires(!std::is_const_v<Memory>)
  {
    BasicView<const void> read{data, shape, stride, dtype, device};
    read.held = held;
    return read;
  }
};

using View = BasicView<const void>;
using MutableView = BasicView<void>;

// Which keys each query may see, (batch, heads, queries, keys). An extent of 1 broadcasts. On a call's device
// or in the CPU's memory.
struct BoolView {
  const bool* data = nullptr;
  Shape shape{};
  Strides stride{};
  Device device = Device::cpu;
  elements::Held held{};

  BoolView() = default;
  template <elements::Bools From>
  constexpr BoolView(From&& from, const Shape& extents) : BoolView(from, extents, bhsd(extents)) {}
  template <elements::Bools From>
  constexpr BoolView(From&& from, const Shape& extents, const Strides& strides)
      : data(elements::first_of(from)), shape(extents), stride(strides), held(from) {}
  constexpr BoolView(const bool* from, const Shape& extents, const Strides& strides, Device where)
      : data(from), shape(extents), stride(strides), device(where) {}

  template <class From>
  BoolView(From&&, const Shape&) = delete;  // no bools (std::vector<bool> holds bits); or gone at the end
  template <class From>
  BoolView(From&&, const Shape&, const Strides&) = delete;  // likewise
};

// What every call asks of a view by itself, or throws Error under this name: that it is given and its extents
// and strides can be, that it lies where its dtype may, and reaches no further than what it was made of.
HEED_API void check_view(const char* name, const View&);
HEED_API void check_view(const char* name, const BoolView&);

// A view that need not be given: a std::optional that takes what a view takes, .weights = {w, {.length = 3}}.
template <class AnyView>
struct Optional : std::optional<AnyView> {
  using std::optional<AnyView>::optional;
  constexpr Optional(const std::optional<AnyView>& other) : std::optional<AnyView>(other) {}

  template <class From>
    requires std::is_constructible_v<AnyView, From, Shape>
  constexpr Optional(From&& from, const Shape& extents) : Optional(AnyView(from, extents)) {}
  template <class From>
    requires std::is_constructible_v<AnyView, From, Shape, Strides>
  constexpr Optional(From&& from, const Shape& extents, const Strides& strides)
      : Optional(AnyView(from, extents, strides)) {}
  template <elements::Untyped Bytes>
    requires std::is_constructible_v<AnyView, Bytes*, Shape, DType>
  constexpr Optional(Bytes* from, const Shape& extents, DType type)
      : Optional(AnyView(from, extents, type)) {}
  template <elements::Untyped Bytes>
    requires std::is_constructible_v<AnyView, Bytes*, Shape, Strides, DType>
  constexpr Optional(Bytes* from, const Shape& extents, const Strides& strides, DType type)
      : Optional(AnyView(from, extents, strides, type)) {}
};

}  // namespace HEED_NAMESPACE
