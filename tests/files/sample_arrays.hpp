// SPDX-License-Identifier: Apache-2.0
// Arrays of every element type and of ranks 0 to 4, filled with random bits: NaNs of every payload among
// them.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "heed/files.hpp"

namespace heed::test {

inline const std::vector<Element> every_element{
    Element::boolean, Element::u8,  Element::i8,  Element::u16, Element::i16, Element::f16, Element::bf16,
    Element::u32,     Element::i32, Element::f32, Element::u64, Element::i64, Element::f64};

inline const std::vector<std::vector<std::int64_t>> some_shapes{
    {}, {1}, {7}, {0}, {3, 5}, {0, 4}, {4, 0}, {2, 1, 3}, {2, 3, 4, 5}, {1, 0, 2, 3}};

inline Array random_array(Element element, const std::vector<std::int64_t>& shape, std::uint64_t seed) {
  Array array{element, shape, {}};
  array.data.resize(static_cast<std::size_t>(array.elements()) * bytes_of(element));
  std::mt19937_64 random(seed);
  for (std::byte& byte : array.data) byte = static_cast<std::byte>(random() >> 56);
  if (element == Element::boolean) {
    for (std::byte& byte : array.data) byte &= std::byte{1};
  }
  return array;
}

inline Arrays one_of_every_kind(std::uint64_t seed) {
  Arrays arrays;
  for (const Element element : every_element) {
    for (const auto& shape : some_shapes) {
      const std::string name = std::string(name_of(element)) + "." + std::to_string(arrays.size());
      arrays[name] = random_array(element, shape, seed + arrays.size());
    }
  }
  return arrays;
}

inline bool same(const Array& a, const Array& b) {
  return a.element == b.element && a.shape == b.shape && a.data == b.data;
}

}  // namespace heed::test
