// SPDX-License-Identifier: Apache-2.0
// Checked sizes of arrays.
#include "files/array_size.hpp"

#include <cstddef>
#include <limits>

#include "heed/error.hpp"

namespace heed::files {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  constexpr std::size_t shown = 8;
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis > 0) text += ", ";
    if (axis == shown) {
      text += "...";
      break;
    }
    text += std::to_string(shape[axis]);
  }
  return text + ")";
}

std::int64_t byte_count(const std::string& subject, Element element, const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t most = std::numeric_limits<std::ptrdiff_t>::max();
  auto bytes = static_cast<std::int64_t>(bytes_of(element));
  bool is_empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      throw Error(Error::shape, subject + ": shape " + shape_text(shape) + " has a negative extent");
    }
    if (extent == 0) {
      is_empty = true;
    } else if (bytes > most / extent) {
      throw Error(Error::shape,
                  subject + ": " + name_of(element) + " " + shape_text(shape) + " is larger than any memory");
    } else {
      bytes *= extent;
    }
  }
  return is_empty ? 0 : bytes;
}

void check_contents(const std::string& subject, const Array& array) {
  const std::int64_t needed = byte_count(subject, array.element, array.shape);
  if (array.data.size() != static_cast<std::size_t>(needed)) {
    throw Error(Error::shape, subject + ": " + name_of(array.element) + " " + shape_text(array.shape) +
                                  " needs " + std::to_string(needed) + " bytes, data has " +
                                  std::to_string(array.data.size()));
  }
  if (array.element != Element::boolean) return;
  for (std::size_t i = 0; i < array.data.size(); ++i) {
    if (array.data[i] > std::byte{1}) {
      throw Error(Error::value, subject + ": boolean " + std::to_string(i) + " is stored as " +
                                    std::to_string(std::to_integer<int>(array.data[i])) + ", not 0 or 1");
    }
  }
}

}  // namespace heed::files
