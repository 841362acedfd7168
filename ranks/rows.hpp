// SPDX-License-Identifier: Apache-2.0
// Rows of what a rank has: of its views, of options that have rows, and as bytes that travel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "heed/distributed.hpp"

namespace heed::ranks {

inline std::int64_t element_bytes(const View& x) { return static_cast<std::int64_t>(bytes_of(x.dtype)); }

inline std::int64_t total(const std::vector<Stretch>& stretches) {
  std::int64_t rows = 0;
  for (const Stretch& s : stretches) rows += s.length;
  return rows;
}

// Numbers or booleans, as what travels: bytes that nobody reads on the way.
struct Elements {
  const void* data = nullptr;
  Shape shape{};
  Strides stride{};
  std::int64_t bytes = 0;  // of one

  Elements() = default;
  Elements(const View& x) : data(x.data), shape(x.shape), stride(x.stride), bytes(element_bytes(x)) {}
  Elements(const BoolView& x) : data(x.data), shape(x.shape), stride(x.stride), bytes(sizeof(bool)) {}
};

template <class Memory>
BasicView<Memory> rows_of(BasicView<Memory> x, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<Memory>, const std::byte, std::byte>;
  if (x.data && count > 0 && first > 0)
    x.data = static_cast<Byte*>(x.data) + first * x.stride.length * element_bytes(x);
  x.shape.length = count;
  return x;
}
inline BoolView rows_of(BoolView x, std::int64_t first, std::int64_t count) {
  if (x.data && count > 0 && first > 0) x.data += first * x.stride.length;
  x.shape.length = count;
  return x;
}

template <class Memory>
BasicView<Memory> heads_of(BasicView<Memory> x, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<Memory>, const std::byte, std::byte>;
  if (x.data && count > 0 && first > 0)
    x.data = static_cast<Byte*>(x.data) + first * x.stride.heads * element_bytes(x);
  x.shape.heads = count;
  return x;
}

inline BoolView heads_of(BoolView x, std::int64_t first, std::int64_t count) {
  if (x.data && count > 0 && first > 0) x.data += first * x.stride.heads;
  x.shape.heads = count;
  return x;
}
inline Elements heads_of(Elements x, std::int64_t first, std::int64_t count) {
  if (x.data && count > 0 && first > 0)
    x.data = static_cast<const std::byte*>(x.data) + first * x.stride.heads * x.bytes;
  x.shape.heads = count;
  return x;
}

// The same numbers elsewhere, of one shape and type, on the threads of the call.
void copy_rows(const View& from, const MutableView& to);

// Options for rows [first, first + count) of a share of `rows`; what broadcasts stays as it is.
Options options_of_rows(const Options&, std::int64_t rows, std::int64_t first, std::int64_t count);

// Rows [first, first + count) of all batch entries and heads, one after another without gaps. Returns where
// they end.
std::byte* pack_rows(const Elements&, std::int64_t first, std::int64_t count, std::byte* into);

// What pack_rows() made of all rows of a share, to where its stretches lie among all rows of the same
// heads, of that shape and without gaps. Returns where it ends.
struct PackedWhole {
  std::byte* data;
  Shape shape;
  std::int64_t bytes;  // of one element
};
const std::byte* unpack_stretches(const std::byte* from, const std::vector<Stretch>&, const PackedWhole&);

}  // namespace heed::ranks
