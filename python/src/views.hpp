// SPDX-License-Identifier: Apache-2.0
// From an array of any rank to the four axes heed computes over, and back.
#pragma once
#include <vector>

#include "tensor.hpp"

namespace heed::python {

struct Placed {
  Shape shape{};
  Strides stride{};
};

// The array's axes, aligned to the right among the four; missing ones are 1. Refuses more than four.
Placed right_aligned(const Tensor& tensor);

// In which order q, k, v and out have their axes: (batch, heads, length, dim), or (batch, length, heads, dim)
// as FlashAttention has them.
enum class AxisOrder : std::uint8_t { bhsd, bshd };
// The same for an array in this order. One of two axes has no heads, and is alike in both.
Placed placed_in(AxisOrder, const Tensor&);
// Where an array in this order has so many axes, it has the last of these.
std::array<std::int64_t, 4> extents_in(AxisOrder, const Shape&, int rank);

// One number per row: (batch, heads, queries) becomes (batch, heads, queries, 1).
Placed one_per_row(const Tensor& tensor);

View view_of(const Tensor& tensor, const Placed& placed);
MutableView mutable_view_of(const Tensor& tensor, const Placed& placed);
BoolView bool_view_of(const Tensor& tensor, const Placed& placed);  // refuses all but booleans

void check_rank(const Tensor& tensor, int least, int most);
void check_same_rank(const Tensor& tensor, const Tensor& as);

// Row-major copies: of an array's elements, and between arrays of one shape and element.
heed::Array packed_copy(const Tensor& from);
void copy_elements(const Tensor& from, const Tensor& to);

struct Integers {
  std::vector<std::int64_t> values{}, shape{};
};
// From an array of integers, or from anything NumPy makes one of (a list, a range).
Integers read_integers(const char* name, nb::handle object);

// A Python number; refuses everything else, and what a float cannot hold.
float read_float(const char* name, nb::handle object);
double read_double(const char* name, nb::handle object);
std::int64_t read_integer(const char* name, nb::handle object);
bool read_flag(const char* name, nb::handle object);
std::string read_word(const char* name, nb::handle object);
// A str, bytes or os.PathLike, as the file system spells it; `what` ends the refusal of anything else.
std::string read_path(const char* name, nb::handle object, const char* what = "a path");

}  // namespace heed::python
