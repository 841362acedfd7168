// SPDX-License-Identifier: Apache-2.0
// Tensors of floats that the layer owns while it computes: projected heads, and stand-ins for arrays of other
// dtypes.
#pragma once
#include <span>

#include "cpu/threads/kept_memory.hpp"
#include "heed/tensor.hpp"

namespace heed::layer {

struct Floats {
  cpu::KeptMemory data{};
  MutableView view{};
};

// Packed with these strides, not initialised. No room: Error with the name and the shape.
Floats make_floats(const char* name, const Shape& shape, const Strides& stride);
Floats copy_as_floats(const char* name, const View&);

// Writes the value to every row of entry b from number counts[b] on.
void fill_rows_after(std::span<const std::int64_t> counts, float value, const MutableView&);

// Rounds to the dtype of `into`. Where `into` has one head and `from` several, their average, summed in head
// order.
void store_heads(const View& from, const MutableView& into);

}  // namespace heed::layer
