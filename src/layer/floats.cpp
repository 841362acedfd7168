// SPDX-License-Identifier: Apache-2.0
// Buffers of the layer, and the copies into them.
#include "layer/floats.hpp"

#include <algorithm>
#include <new>

#include "refusal/argument.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {

Floats make_floats(const Backend& backend, const char* name, const Shape& shape, const Strides& stride,
                   DType dtype) {
  const auto bytes_each = static_cast<std::int64_t>(bytes_of(dtype));
  try {
    const std::int64_t bytes = std::min(shape.elements(), longest_reach / bytes_each) * bytes_each;
    Memory data = backend.allocate(static_cast<std::size_t>(bytes));
    const MutableView view{data.get(), shape, stride, dtype, backend.device()};
    return {std::move(data), view};
  } catch (const std::bad_alloc&) {
    throw refusal(Error::capacity, name, ": no room for ", shape, " floats");
  }
}

Floats copy_as_floats(const Backend& backend, const char* name, const View& x) {
  Floats copy = make_floats(backend, name, x.shape, bhsd(x.shape));
  backend.copy(x, copy.view);
  return copy;
}

void fill_rows_after(const Backend& backend, std::span<const std::int64_t> counts, float value,
                     const MutableView& x) {
  for (std::size_t b = 0; b < counts.size(); ++b) {
    if (counts[b] == x.shape.length) continue;
    MutableView rows = x;
    const std::int64_t first = static_cast<std::int64_t>(b) * x.stride.batch + counts[b] * x.stride.length;
    rows.data = static_cast<std::byte*>(x.data) + first * static_cast<std::int64_t>(bytes_of(x.dtype));
    rows.shape.batch = 1;
    rows.shape.length -= counts[b];
    backend.fill(rows, value);
  }
}

}  // namespace heed::layer
