// SPDX-License-Identifier: Apache-2.0
// See sequence.hpp.
#include "sequence.hpp"

#include <fmt/core.h>

#include "heed/error.hpp"
#include "heed/files.hpp"

namespace heed::tool {

Buffer Sequence::rounded_to(DType dtype) const {
  Buffer buffer({.batch = batch, .heads = 1, .length = length, .dim = width}, dtype);
  for (std::size_t i = 0; i < values.size(); ++i) buffer.set(i, values[i]);
  return buffer;
}

std::vector<float> floats_of(const std::string& flag, const Array& array) {
  switch (array.element) {
    case Element::f16:
    case Element::bf16:
    case Element::f32:
    case Element::f64:
      return array.to_floats();
    default:
      throw Error(Error::dtype, fmt::format("{}: {} numbers are none of f16, bf16, f32, f64", flag,
                                            name_of(array.element)));
  }
}

Sequence read_sequence(const std::string& flag, const std::string& path) {
  const Array array = read_npy(path);
  if (array.shape.size() != 2 && array.shape.size() != 3)
    throw Error(Error::shape,
                fmt::format("{}: shape {} is neither (batch, length, width) nor (length, width)", flag,
                            text_of(array.shape)));
  Sequence sequence;
  if (array.shape.size() == 3) sequence.batch = array.shape[0];
  sequence.length = array.shape[array.shape.size() - 2];
  sequence.width = array.shape.back();
  sequence.values = floats_of(flag, array);
  return sequence;
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
  return "(" + text + ")";
}

}  // namespace heed::tool
