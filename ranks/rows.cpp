// SPDX-License-Identifier: Apache-2.0
#include "ranks/rows.hpp"

#include <cstring>

#include "threads/pool.hpp"

namespace heed::ranks {
namespace {

// Rows [first, first + count) of what has all `rows` of the share; what broadcasts stays as it is.
template <class AnyView>
AnyView rows_unless_shared(const AnyView& x, std::int64_t rows, std::int64_t first, std::int64_t count) {
  return x.shape.length == rows && x.shape.length != 1 ? rows_of(x, first, count) : x;
}

// A row of `count` elements of so many bytes, and how far apart they lie on either side.
struct RowCopy {
  std::int64_t count, bytes, from_step, to_step;

  void operator()(const std::byte* from, std::byte* to) const {
    if (count == 1 || (from_step == 1 && to_step == 1)) {
      std::memcpy(to, from, static_cast<std::size_t>(count * bytes));
    } else {
      for (std::int64_t d = 0; d < count; ++d)
        std::memcpy(to + d * to_step * bytes, from + d * from_step * bytes, static_cast<std::size_t>(bytes));
    }
  }
};

}  // namespace

void copy_rows(const View& from, const MutableView& to) {
  const Shape& s = from.shape;
  const std::int64_t bytes = element_bytes(from);
  const RowCopy copy{s.dim, bytes, from.stride.dim, to.stride.dim};
  const auto at = [&](auto* data, const Strides& by, std::int64_t n) {
    return data + (n / s.heads * by.batch + n % s.heads * by.heads) * bytes;
  };
  threads::parallel_for(static_cast<std::size_t>(s.batch * s.heads), [&](std::size_t head) {
    const auto n = static_cast<std::int64_t>(head);
    const std::byte* source = at(static_cast<const std::byte*>(from.data), from.stride, n);
    std::byte* target = at(static_cast<std::byte*>(to.data), to.stride, n);
    for (std::int64_t i = 0; i < s.length; ++i)
      copy(source + i * from.stride.length * bytes, target + i * to.stride.length * bytes);
  });
}

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
  const RowCopy copy{x.shape.dim, x.bytes, x.stride.dim, 1};
  const auto* from = static_cast<const std::byte*>(x.data);
  for (std::int64_t b = 0; b < x.shape.batch; ++b)
    for (std::int64_t h = 0; h < x.shape.heads; ++h)
      for (std::int64_t i = first; i < first + count; ++i, into += row)
        copy(from + (b * x.stride.batch + h * x.stride.heads + i * x.stride.length) * x.bytes, into);
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
