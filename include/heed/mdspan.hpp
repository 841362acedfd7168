// SPDX-License-Identifier: Apache-2.0
// A std::mdspan as a view: attention({.q = view_of(q), ...}, ...). Not part of heed.hpp. It asks for the
// standard's interface and not for <mdspan>, which C++20 lacks, so other implementations serve as well.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "heed/tensor.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {
namespace elements {

// A layout may have its first element further on than its memory; one without elements has none to ask for.
template <class Mdspan>
constexpr auto* first_of_mdspan(const Mdspan& m, const Shape& shape) {
  if (shape.elements() == 0) return m.data_handle();
  return [&]<std::size_t... axis>(std::index_sequence<axis...>) {
    return m.data_handle() + m.mapping()((axis * 0)...);
  }(std::make_index_sequence<Mdspan::rank()>());
}

}  // namespace elements

// Of rank 4 the axes are (batch, heads, length, dim), of rank 3 the last three, of rank 2 the last two. Gives
// a BoolView of bools, a View of const numbers and a MutableView of others.
template <class Mdspan>
constexpr auto view_of(const Mdspan& m) {
  using T = typename Mdspan::element_type;
  using Plain = std::remove_const_t<T>;
  static_assert(elements::Number<Plain> || std::is_same_v<Plain, bool>,
                "heed computes with float, heed::f16 and heed::bf16, and masks are of bool");
  static_assert(Mdspan::rank() >= 2 && Mdspan::rank() <= 4,
                "the axes are (batch, heads, length, dim), (heads, length, dim) or (length, dim)");
  static_assert(Mdspan::is_always_strided(), "a view is read by strides, and this layout may have none");
  static_assert(
      std::is_same_v<typename Mdspan::data_handle_type, T*> && std::is_same_v<typename Mdspan::reference, T&>,
      "a view reads memory as it lies, and this accessor gives something else");

  std::array<std::int64_t, 4> extent{1, 1, 1, 1}, stride{};
  stride.fill(Strides::not_given);
  for (std::size_t axis = 0, at = 4 - Mdspan::rank(); axis < Mdspan::rank(); ++axis, ++at) {
    extent[at] = static_cast<std::int64_t>(m.extent(axis));
    stride[at] = static_cast<std::int64_t>(m.stride(axis));
  }
  const Shape shape{extent[0], extent[1], extent[2], extent[3]};
  const Strides strides{stride[0], stride[1], stride[2], stride[3]};

  using Memory = std::conditional_t<std::is_const_v<T>, const void, void>;
  using AnyView = std::conditional_t<std::is_same_v<Plain, bool>, BoolView, BasicView<Memory>>;
  return AnyView(elements::first_of_mdspan(m, shape), shape, strides);
}

}  // namespace HEED_NAMESPACE
