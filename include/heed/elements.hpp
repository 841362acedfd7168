// SPDX-License-Identifier: Apache-2.0
// What a view is made from: a pointer, or an array, a vector, a span of numbers that heed computes with;
// nothing of another type, and nothing that dies at the end of the line.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>

#include "heed/dtype.hpp"
#include "heed/half.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

namespace elements {

template <class From>
concept Pointer = std::is_pointer_v<std::remove_cvref_t<From>>;

template <class>
inline constexpr bool is_span = false;
template <class T, std::size_t extent>
inline constexpr bool is_span<std::span<T, extent>> = true;

// An array, a vector or the like that somebody holds, or a span, which owns nothing that could be lost with
// it. (Not by the concepts of <ranges>, which would take a tenth of the compile time of <heed/heed.hpp>.)
template <class From>
concept Range =
    (std::is_lvalue_reference_v<From> || is_span<std::remove_cvref_t<From>>) && requires(From& from) {
      { std::begin(from) } -> std::contiguous_iterator;
      std::data(from);
      std::size(from);
    };

template <class From>
concept Sized = requires(From& from) {
  std::data(from);
  std::size(from);
};

template <class From>
constexpr auto element_of() {
  if constexpr (Pointer<From>)
    return std::type_identity<std::remove_pointer_t<std::remove_cvref_t<From>>>();
  else if constexpr (Range<From>)
    return std::type_identity<std::remove_pointer_t<decltype(std::data(std::declval<From&>()))>>();
  else
    return std::type_identity<void>();
}

// const where it may only be read; void where there is none.
template <class From>
using ElementOf = typename decltype(element_of<From>())::type;

template <class T>
concept Number =
    std::same_as<T, float> || std::same_as<T, f16> || std::same_as<T, bf16> || std::same_as<T, double>;

template <class From>
concept Numbers = Number<std::remove_const_t<ElementOf<From>>>;
template <class From>
concept Bools = std::same_as<std::remove_const_t<ElementOf<From>>, bool>;
template <class T>
concept Untyped = std::is_void_v<T> || std::same_as<std::remove_const_t<T>, std::byte>;

template <Number T>
constexpr DType dtype_of = std::same_as<T, float>    ? DType::f32
                           : std::same_as<T, f16>    ? DType::f16
                           : std::same_as<T, double> ? DType::f64
                                                     : DType::bf16;

}  // namespace elements

// A span of numbers that somebody else holds for as long as it is read: none of a vector that is gone at the
// end of the line, and none of numbers between braces.
template <class T>
struct Borrowed : std::span<const T> {
  Borrowed() = default;
  constexpr Borrowed(const T* first, std::size_t count) : std::span<const T>(first, count) {}

  template <elements::Range From>
    requires std::is_convertible_v<From, std::span<const T>>
  constexpr Borrowed(From&& from) : std::span<const T>(from) {}

  // Anything else ends here, and compilers print the line.
  template <class From>
    requires(std::is_convertible_v<From, std::span<const T>> && !elements::Range<From>)
  Borrowed(From&&) = delete;  // gone at the end of the line: give it a name, which outlives the call
  template <class From>
    requires(elements::Sized<From> && !std::is_convertible_v<From, std::span<const T>>)
  Borrowed(From&&) = delete;  // numbers of another type: lengths and ids are std::int32_t, slopes float
  Borrowed(std::initializer_list<T>) = delete;  // gone at the end of the line, likewise
};

}  // namespace HEED_NAMESPACE
