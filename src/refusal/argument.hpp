// SPDX-License-Identifier: Apache-2.0
// One array of a call under the name its refusals use, whatever its type: q, out, a bias, a boolean mask; and
// what is refused of it before anything is believed about it. Each check throws Error or changes nothing.
#pragma once
#include <array>
#include <cstdint>

#include "heed/mask.hpp"
#include "heed/tensor.hpp"

namespace heed::refusing {

struct Argument {
  const char* name;
  const void* data;
  Shape shape;
  Strides stride;
  std::int64_t element_bytes;

  Argument(const char* n, const View& v)
      : name(n),
        data(v.data),
        shape(v.shape),
        stride(v.stride),
        element_bytes(v.dtype == DType::f32 ? 4 : 2) {}
  Argument(const char* n, const BoolView& v)
      : name(n), data(v.data), shape(v.shape), stride(v.stride), element_bytes(1) {}
  Argument(const char* n, const KeyLengths& lengths)
      : name(n),
        data(lengths.valid.data()),
        shape{1, 1, 1, static_cast<std::int64_t>(lengths.valid.size())},
        stride{0, 0, 0, 1},
        element_bytes(4) {}

  bool empty() const { return shape.batch == 0 || shape.heads == 0 || shape.length == 0 || shape.dim == 0; }
};

using Axes = std::array<std::int64_t, 4>;
constexpr std::array<const char*, 4> axis_names{"batch", "heads", "length", "dim"};
constexpr Axes axes(const Shape& s) { return {s.batch, s.heads, s.length, s.dim}; }
constexpr Axes axes(const Strides& s) { return {s.batch, s.heads, s.length, s.dim}; }

// No array reaches further than this many bytes, so sums of a few reaches fit in 64 bits.
constexpr std::int64_t longest_reach = std::int64_t{1} << 60;

// Bytes from the first element to the end of the last one. Of a checked argument that is not empty.
constexpr std::int64_t reach_bytes(const Argument& a) {
  const Shape& n = a.shape;
  const Strides& s = a.stride;
  return a.element_bytes * ((n.batch - 1) * s.batch + (n.heads - 1) * s.heads + (n.length - 1) * s.length +
                            (n.dim - 1) * s.dim + 1);
}

// One array by itself: extents, strides, reach, data.
void check_argument(const Argument&);
// The same, and that its dtype and device are ones this build knows.
void check_view(const char* name, const View&);

// No element of `output` shares a byte with `other`; slices of one buffer may interleave. For checked
// arguments.
void check_apart(const Argument& output, const Argument& other);
// Every element of an output has a place of its own.
void check_own_places(const Argument& output);

}  // namespace heed::refusing

namespace heed {
using namespace refusing;
}
