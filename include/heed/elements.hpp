// SPDX-License-Identifier: Apache-2.0
// What a view of a tensor is made from: a pointer to numbers, or an array, a vector, a span; nothing whose
// numbers heed does not know, and nothing that dies at the end of the line.
#pragma once
#include <concepts>
#include <cstdint>
#include <ranges>
#include <type_traits>

#include "heed/half.hpp"

namespace heed {

enum class DType : std::uint8_t { f32, f16, bf16 };

namespace views {

// double is none: nothing here would keep its bits.
template <class T>
concept Number = std::same_as<T, float> || std::same_as<T, f16> || std::same_as<T, bf16>;

template <class From>
concept Pointer = std::is_pointer_v<std::remove_cvref_t<From>>;
template <class From>
concept Range = std::ranges::contiguous_range<From> && std::ranges::sized_range<From> &&
                std::ranges::borrowed_range<From>;

template <class From>
struct PointedTo {};
template <Pointer From>
struct PointedTo<From> {
  using type = std::remove_pointer_t<std::remove_cvref_t<From>>;
};
template <Range From>
struct PointedTo<From> {
  using type = std::remove_reference_t<std::ranges::range_reference_t<From>>;
};
template <class From>
using NumberOf = std::remove_const_t<typename PointedTo<From>::type>;

// What a view of `Memory` can be made from: void is written, const void only read.
template <class From, class Memory>
concept ElementsFor = Number<NumberOf<From>> &&
                      (std::is_const_v<Memory> || !std::is_const_v<typename PointedTo<From>::type>);

template <class From>
constexpr DType dtype_of() {
  if (std::same_as<NumberOf<From>, f16>) return DType::f16;
  return std::same_as<NumberOf<From>, bf16> ? DType::bf16 : DType::f32;
}

}  // namespace views
}  // namespace heed
