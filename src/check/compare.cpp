// SPDX-License-Identifier: Apache-2.0
#include "check/compare.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "heed/half.hpp"
#include "refusal/refusal.hpp"

namespace heed::checking {
namespace {

double rounded(double value, DType dtype) {
  const float x = static_cast<float>(value);
  if (dtype == DType::f16) return to_float(from_float<f16>(x));
  if (dtype == DType::bf16) return to_float(from_float<bf16>(x));
  return x;
}

// An infinity is within the bound where a number is that still rounds to it: the bound has half a step for
// the rounding itself, and the next step after the largest number ends here.
bool may_overflow_to(double found, const ExpectedElement& expected, DType dtype) {
  const double farthest = std::copysign(1.0, found) * expected.value + expected.bound;
  return std::isinf(found) && farthest >= (dtype == DType::f16 ? 0x1p16 : 0x1p128);
}

std::string with_digits(double number, int digits) {
  if (std::isnan(number)) return "nan";
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::general, digits);
  return {text.data(), end.ptr};
}

}  // namespace

void compare(const ElementPlace& at, double found, const ExpectedElement& expected, Check& check) {
  const double error = std::abs(found - expected.value);
  ++check.compared;
  if (std::isfinite(error)) {
    check.worst_error = std::max(check.worst_error, error);
    if (error > 0)
      check.worst_error_in_bounds = std::max(check.worst_error_in_bounds, error / expected.bound);
  }
  // Infinities are compared after the reference is rounded to the output's type, where large values may
  // overflow.
  if (expected.bound == INFINITY) return;  // nothing can be said
  const bool both_nan = std::isnan(found) && std::isnan(expected.value);
  if (both_nan || found == rounded(expected.value, at.dtype) || error <= expected.bound) return;
  if (may_overflow_to(found, expected, at.dtype)) return;
  if (check.beyond_bound++ > 0) return;
  check.first_miss = at.name + in_words(at.place) + " is " + in_words(static_cast<float>(found)) +
                     ", the reference says " + with_digits(expected.value, 9) + ", the bound is " +
                     with_digits(expected.bound, 3);
}

}  // namespace heed::checking
