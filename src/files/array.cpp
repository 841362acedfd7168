// SPDX-License-Identifier: Apache-2.0
// The array that owns its elements, and its conversions to and from the numbers a caller computes with.
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "files/array_size.hpp"
#include "heed/error.hpp"
#include "heed/files.hpp"
#include "heed/half.hpp"

namespace HEED_NAMESPACE {
namespace {

// Files hold little-endian elements and arrays hold them as they lie in memory; no swap is written anywhere.
static_assert(std::endian::native == std::endian::little);

struct ElementFacts {
  const char* name;
  std::size_t bytes;
};

// In the order of the enumeration.
constexpr std::array<ElementFacts, 13> element_facts{{{"bool", 1},
                                                      {"u8", 1},
                                                      {"i8", 1},
                                                      {"u16", 2},
                                                      {"i16", 2},
                                                      {"f16", 2},
                                                      {"bf16", 2},
                                                      {"u32", 4},
                                                      {"i32", 4},
                                                      {"f32", 4},
                                                      {"u64", 8},
                                                      {"i64", 8},
                                                      {"f64", 8}}};
static_assert(element_facts.size() == static_cast<std::size_t>(Element::f64) + 1);

const ElementFacts& facts_of(Element element) {
  const auto index = static_cast<std::size_t>(element);
  if (index < element_facts.size()) return element_facts[index];
  throw Error(Error::dtype, "element: " + std::to_string(index) + " is not an element type");
}

// Calls visit(i, value) for every element, read as Stored.
template <class Stored, class Visit>
void for_each(const Array& array, Visit visit) {
  const std::size_t count = array.data.size() / sizeof(Stored);
  for (std::size_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, array.data.data() + i * sizeof(Stored), sizeof(Stored));
    visit(i, value);
  }
}

template <class Stored>
std::vector<std::byte> stored_as(const std::vector<float>& values) {
  std::vector<std::byte> data(values.size() * sizeof(Stored));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored value;
    if constexpr (std::is_same_v<Stored, double>) {
      value = values[i];
    } else {
      value = from_float<Stored>(values[i]);
    }
    std::memcpy(data.data() + i * sizeof(Stored), &value, sizeof(Stored));
  }
  return data;
}

template <class Stored>
std::vector<std::int64_t> integers_of(const Array& array) {
  std::vector<std::int64_t> integers(array.data.size() / sizeof(Stored));
  for_each<Stored>(array, [&](std::size_t i, Stored value) {
    if constexpr (std::is_same_v<Stored, std::uint64_t>) {
      if (value > std::uint64_t{INT64_MAX}) {
        throw Error(Error::value, "to_integers: element " + std::to_string(i) + " is " +
                                      std::to_string(value) + ", more than " + std::to_string(INT64_MAX));
      }
    }
    integers[i] = static_cast<std::int64_t>(value);  // NOLINT(bugprone-signed-char-misuse): i8 is a number
  });
  return integers;
}

}  // namespace

std::size_t bytes_of(Element element) { return facts_of(element).bytes; }
const char* name_of(Element element) { return facts_of(element).name; }

std::int64_t Array::elements() const {
  const std::int64_t bytes = files::byte_count("array", element, shape);
  return bytes / static_cast<std::int64_t>(bytes_of(element));
}

std::vector<float> Array::to_floats() const {
  files::check_contents("to_floats", *this);
  std::vector<float> floats(static_cast<std::size_t>(elements()));
  switch (element) {
    case Element::f32:
      if (!data.empty()) std::memcpy(floats.data(), data.data(), data.size());
      break;
    case Element::f64:
      for_each<double>(*this, [&](std::size_t i, double x) { floats[i] = static_cast<float>(x); });
      break;
    case Element::f16:
      for_each<f16>(*this, [&](std::size_t i, f16 x) { floats[i] = to_float(x); });
      break;
    case Element::bf16:
      for_each<bf16>(*this, [&](std::size_t i, bf16 x) { floats[i] = to_float(x); });
      break;
    default:
      throw Error(Error::dtype, std::string("to_floats: ") + name_of(element) + " is not a floating element");
  }
  return floats;
}

std::vector<std::int64_t> Array::to_integers() const {
  files::check_contents("to_integers", *this);
  switch (element) {
    case Element::boolean:
    case Element::u8:
      return integers_of<std::uint8_t>(*this);
    case Element::i8:
      return integers_of<std::int8_t>(*this);
    case Element::u16:
      return integers_of<std::uint16_t>(*this);
    case Element::i16:
      return integers_of<std::int16_t>(*this);
    case Element::u32:
      return integers_of<std::uint32_t>(*this);
    case Element::i32:
      return integers_of<std::int32_t>(*this);
    case Element::u64:
      return integers_of<std::uint64_t>(*this);
    case Element::i64:
      return integers_of<std::int64_t>(*this);
    default:
      throw Error(Error::dtype,
                  std::string("to_integers: ") + name_of(element) + " is not an integer or boolean element");
  }
}

Array Array::from_floats(std::vector<std::int64_t> shape, const std::vector<float>& values, Element element) {
  Array array{element, std::move(shape), {}};
  if (static_cast<std::size_t>(array.elements()) != values.size()) {
    throw Error(Error::shape, "from_floats: shape " + files::shape_text(array.shape) + " holds " +
                                  std::to_string(array.elements()) + " elements, values has " +
                                  std::to_string(values.size()));
  }
  switch (element) {
    case Element::f32:
      array.data = stored_as<float>(values);
      break;
    case Element::f64:
      array.data = stored_as<double>(values);
      break;
    case Element::f16:
      array.data = stored_as<f16>(values);
      break;
    case Element::bf16:
      array.data = stored_as<bf16>(values);
      break;
    default:
      throw Error(Error::dtype,
                  std::string("from_floats: ") + name_of(element) + " is not a floating element");
  }
  return array;
}

}  // namespace HEED_NAMESPACE
