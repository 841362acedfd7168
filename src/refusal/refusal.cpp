// SPDX-License-Identifier: Apache-2.0
// How numbers and shapes read in a refusal.
#include "refusal/refusal.hpp"

#include <array>
#include <charconv>
#include <cmath>

#include "heed/dtype.hpp"

namespace heed::refusing {

std::string in_words(float number) {
  if (std::isnan(number)) return "nan";
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), end.ptr};
}

// Piece by piece: at -O3 g++ 12 warns of what it makes of "(" + text.
std::string in_words(const Shape& s) {
  std::string text;
  for (const std::int64_t extent : {s.batch, s.heads, s.length, s.dim}) {
    text += text.empty() ? "(" : ", ";
    text += std::to_string(extent);
  }
  return text += ")";
}

std::string in_words(const Strides& s) { return in_words(Shape{s.batch, s.heads, s.length, s.dim}); }

}  // namespace heed::refusing

// The names of the element types, as sentences and files spell them.

namespace HEED_NAMESPACE {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
  }
  return "unknown";
}

const char* name_of(CacheType type) {
  switch (type) {
    case CacheType::f32:
      return "f32";
    case CacheType::f16:
      return "f16";
    case CacheType::bf16:
      return "bf16";
    case CacheType::int8:
      return "int8";
  }
  return "unknown";
}

}  // namespace HEED_NAMESPACE
