// SPDX-License-Identifier: Apache-2.0
// Tensors of floats, of 32 bits unless said otherwise, that the layer owns while it computes: projected
// heads, and stand-ins for arrays of other dtypes.
#pragma once
#include <cstdint>
#include <span>

#include "backend/backend.hpp"

namespace heed::layer {

struct Floats {
  Memory data{};
  MutableView view{};
};

// Packed with these strides, not initialised. No room: Error with the name and the shape.
Floats make_floats(const Backend&, const char* name, const Shape& shape, const Strides& stride,
                   DType dtype = DType::f32);
Floats copy_as_floats(const Backend&, const char* name, const View&);

// Writes the value to every row of entry b from number counts[b] on.
void fill_rows_after(const Backend&, std::span<const std::int64_t> counts, float value, const MutableView&);

}  // namespace heed::layer
