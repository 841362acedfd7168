// SPDX-License-Identifier: Apache-2.0
// See largest.hpp.
#include "view/largest.hpp"

#include <cmath>

namespace HEED_NAMESPACE::view {

void LargestWeights::add_row(std::span<const float> row, const bool* hidden) {
  if (count == 0) return;
  const std::size_t first = weights.size();
  keys.resize(first + count, no_key);
  weights.resize(first + count, 0);
  float* const kept = weights.data() + first;
  std::uint32_t* const at = keys.data() + first;
  for (std::size_t j = 0; j < row.size(); ++j) {
    const float w = row[j];
    if (!(w > kept[count - 1]) || !std::isfinite(w) || (hidden && hidden[j])) continue;
    std::size_t place = count - 1;
    for (; place > 0 && w > kept[place - 1]; --place) {
      kept[place] = kept[place - 1];
      at[place] = at[place - 1];
    }
    kept[place] = w;
    at[place] = static_cast<std::uint32_t>(j);
  }
}

}  // namespace HEED_NAMESPACE::view
