// SPDX-License-Identifier: Apache-2.0
// Buffers of the layer, and the copies in and out of them.
#include "layer/floats.hpp"

#include <algorithm>
#include <new>

#include "layer/element.hpp"
#include "refusal/argument.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {

Floats make_floats(const char* name, const Shape& shape, const Strides& stride) {
  try {
    cpu::KeptMemory data =
        cpu::take_memory(static_cast<std::size_t>(std::min(shape.elements(), longest_reach)));
    const MutableView view{data.get(), shape, stride};
    return {std::move(data), view};
  } catch (const std::bad_alloc&) {
    throw refusal(Error::capacity, name, ": no room for ", shape, " floats");
  }
}

Floats copy_as_floats(const char* name, const View& x) {
  Floats copy = make_floats(name, x.shape, bhsd(x.shape));
  float* next = copy.data.get();
  with_elements(x, [&](const auto* from) {
    for_each_index(x.shape, [&](const Shape& at) { *next++ = to_float(from[offset(x.stride, at)]); });
  });
  return copy;
}

void fill_rows_after(std::span<const std::int64_t> counts, float value, const MutableView& x) {
  with_elements(x, [&]<class T>(T* to) {
    for (std::int64_t b = 0; b < std::ssize(counts); ++b)
      for (std::int64_t h = 0; h < x.shape.heads; ++h)
        for (std::int64_t i = counts[static_cast<std::size_t>(b)]; i < x.shape.length; ++i)
          for (std::int64_t d = 0; d < x.shape.dim; ++d)
            to[offset(x.stride, {b, h, i, d})] = from_float<T>(value);
  });
}

void store_heads(const View& from, const MutableView& into) {
  const auto* source = static_cast<const float*>(from.data);
  const std::int64_t averaged = from.shape.heads / into.shape.heads;
  with_elements(into, [&]<class T>(T* to) {
    for_each_index(into.shape, [&](const Shape& at) {
      const float* first = source + offset(from.stride, at);
      float sum = *first;
      for (std::int64_t h = 1; h < averaged; ++h) sum += first[h * from.stride.heads];
      to[offset(into.stride, at)] = from_float<T>(averaged == 1 ? sum : sum / static_cast<float>(averaged));
    });
  });
}

}  // namespace heed::layer
