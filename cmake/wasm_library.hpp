// SPDX-License-Identifier: Apache-2.0
// What emscripten 3.1.6 lacks of the C++20 library and heed uses. Included before every file of a WebAssembly
// build; a later library, which has these, leaves the file empty.
#pragma once
#include <version>

#if __cplusplus > 201703L && _LIBCPP_VERSION < 15000
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

namespace std {

template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

namespace ranges {

template <class Range, class Value, class Projection = identity>
constexpr auto find(Range&& range, const Value& value, Projection projection = {}) {
  return std::find_if(begin(range), end(range),
                      [&](const auto& each) { return std::invoke(projection, each) == value; });
}

template <class Range, class Predicate>
constexpr auto find_if(Range&& range, Predicate predicate) {
  return std::find_if(begin(range), end(range), std::ref(predicate));
}

template <class Range, class Predicate>
constexpr auto count_if(Range&& range, Predicate predicate) {
  return std::count_if(begin(range), end(range), std::ref(predicate));
}

template <class Range, class Order = std::less<>, class Projection = identity>
constexpr void sort(Range&& range, Order order = {}, Projection projection = {}) {
  std::sort(begin(range), end(range), [&](const auto& a, const auto& b) {
    return std::invoke(order, std::invoke(projection, a), std::invoke(projection, b));
  });
}

template <class Range, class Order = std::less<>, class Projection = identity>
constexpr auto min_element(Range&& range, Order order = {}, Projection projection = {}) {
  return std::min_element(begin(range), end(range), [&](const auto& a, const auto& b) {
    return std::invoke(order, std::invoke(projection, a), std::invoke(projection, b));
  });
}

template <class Range>
constexpr auto max_element(Range&& range) {
  return std::max_element(begin(range), end(range));
}

template <class Range, class Predicate>
constexpr bool any_of(Range&& range, Predicate predicate) {
  return std::any_of(begin(range), end(range), std::ref(predicate));
}

template <class A, class B>
constexpr bool equal(A&& a, B&& b) {
  return std::equal(begin(a), end(a), begin(b), end(b));
}

template <class Range, class To>
constexpr void copy(Range&& range, To to) {
  std::copy(begin(range), end(range), to);
}

template <class Range, class Value>
constexpr void fill(Range&& range, const Value& value) {
  std::fill(begin(range), end(range), value);
}

}  // namespace ranges

// This C library's printf knows one locale only.
inline to_chars_result to_chars(char* first, char* last, double value, chars_format, int digits) {
  return {first + snprintf(first, static_cast<size_t>(last - first), "%.*g", digits, value), errc{}};
}

// The shortest text that reads back as the same number, with or without an exponent, whichever is shorter.
template <class Float>
to_chars_result shortest_to_chars(char* first, char* last, Float value, Float (*read)(const char*)) {
  char scientific[40], fixed[400];
  int length = 0, digits = 0;
  do length = snprintf(scientific, sizeof scientific, "%.*e", digits++, static_cast<double>(value));
  while (digits < 17 && read(scientific) != value);
  string_view text(scientific, static_cast<size_t>(length));
  if (isfinite(value)) {
    const int decimals = digits - 1 - atoi(scientific + text.find('e') + 1);
    length = snprintf(fixed, sizeof fixed, "%.*f", max(decimals, 0), static_cast<double>(value));
    if (length <= static_cast<int>(text.size())) text = {fixed, static_cast<size_t>(length)};
  }
  if (static_cast<ptrdiff_t>(text.size()) > last - first) return {last, errc::value_too_large};
  return {std::copy(text.begin(), text.end(), first), errc{}};
}
inline to_chars_result to_chars(char* first, char* last, float value) {
  return shortest_to_chars<float>(first, last, value, [](const char* text) { return strtof(text, nullptr); });
}
inline to_chars_result to_chars(char* first, char* last, double value) {
  return shortest_to_chars<double>(first, last, value,
                                   [](const char* text) { return strtod(text, nullptr); });
}

inline from_chars_result from_chars(const char* first, const char* last, double& value) {
  const string text(first, last);
  char* end = nullptr;
  const double read = strtod(text.c_str(), &end);
  if (end == text.c_str()) return {first, errc::invalid_argument};
  const char* const after = first + (end - text.c_str());
  if (!isfinite(read)) return {after, errc::result_out_of_range};
  value = read;
  return {after, errc{}};
}

}  // namespace std
#endif
