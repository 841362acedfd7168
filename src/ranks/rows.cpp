// SPDX-License-Identifier: Apache-2.0
#include "ranks/rows.hpp"

#include <cstring>

namespace heed::ranks {
namespace {

// Rows [first, first + count) of what has all `rows` of the share; what broadcasts stays as it is.
template <class AnyView>
AnyView rows_unless_shared(const AnyView& x, std::int64_t rows, std::int64_t first, std::int64_t count) {
  return x.shape.length == rows && x.shape.length != 1 ? rows_of(x, first, count) : x;
}

void copy_row(const Elements& x, std::int64_t first, std::byte* to) {
  const std::int64_t element = x.bytes;
  const auto* from = static_cast<const std::byte*>(x.data) + first * element;
  if (x.stride.dim == 1 || x.shape.dim == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(x.shape.dim * element));
  } else {
    for (std::int64_t d = 0; d < x.shape.dim; ++d)
      std::memcpy(to + d * element, from + d * x.stride.dim * element, static_cast<std::size_t>(element));
  }
}

}  // namespace

Options options_of_rows(const Options& options, std::int64_t rows, std::int64_t first, std::int64_t count) {
  Options part = options;
  if (part.bias) part.bias = rows_unless_shared(*part.bias, rows, first, count);
  for (Mask& mask : part.masks) {
    if (auto* keep = std::get_if<Keep>(&mask))
      keep->where = rows_unless_shared(keep->where, rows, first, count);
    if (auto* hide = std::get_if<Hide>(&mask))
      hide->where = rows_unless_shared(hide->where, rows, first, count);
  }
  return part;
}

std::byte* pack_rows(const Elements& x, std::int64_t first, std::int64_t count, std::byte* into) {
  const std::int64_t row = x.shape.dim * x.bytes;
  for (std::int64_t b = 0; b < x.shape.batch; ++b)
    for (std::int64_t h = 0; h < x.shape.heads; ++h)
      for (std::int64_t i = first; i < first + count; ++i, into += row)
        copy_row(x, b * x.stride.batch + h * x.stride.heads + i * x.stride.length, into);
  return into;
}

const std::byte* unpack_stretches(const std::byte* from, const std::vector<Stretch>& stretches,
                                  const PackedWhole& whole) {
  const Shape& s = whole.shape;
  const std::int64_t row = s.dim * whole.bytes;
  std::byte* to = whole.data;
  for (std::int64_t n = 0; n < s.batch * s.heads; ++n, to += s.length * row)
    for (const auto& [first, length] : stretches) {
      const auto bytes = static_cast<std::size_t>(length * row);
      if (bytes > 0) std::memcpy(to + first * row, from, bytes);
      from += bytes;
    }
  return from;
}

}  // namespace heed::ranks
