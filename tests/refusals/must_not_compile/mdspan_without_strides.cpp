// SPDX-License-Identifier: Apache-2.0
// A layout that no strides describe, the lower triangle of a matrix row after row, cannot be a view.
#include "../../interfaces/stand_in_mdspan.hpp"
#include "heed/mdspan.hpp"

struct Triangle {
  template <class Extents>
  struct mapping : stand_in::strided_mapping<Extents> {
    static constexpr bool is_always_strided() { return false; }
    constexpr std::size_t operator()(std::size_t i, std::size_t j) const { return i * (i + 1) / 2 + j; }
  };
};

using Extents = stand_in::dextents<std::size_t, 2>;
#ifdef FIXED
using Layout = stand_in::layout_right;
#else
using Layout = Triangle;
#endif

heed::View view(const stand_in::mdspan<const float, Extents, Layout>& bias) { return heed::view_of(bias); }
