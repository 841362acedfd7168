// SPDX-License-Identifier: Apache-2.0
// An accessor that computes what it gives would be bypassed by a view, which reads the memory.
#include "../../interfaces/stand_in_mdspan.hpp"
#include "heed/mdspan.hpp"

struct Doubled {
  using element_type = const float;
  using reference = float;
  using data_handle_type = const float*;
  constexpr reference access(data_handle_type data, std::size_t i) const { return 2 * data[i]; }
};

using Extents = stand_in::dextents<std::size_t, 2>;
#ifdef FIXED
using Accessor = stand_in::default_accessor<const float>;
#else
using Accessor = Doubled;
#endif

heed::View view(const stand_in::mdspan<const float, Extents, stand_in::layout_right, Accessor>& q) {
  return heed::view_of(q);
}
