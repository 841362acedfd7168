// SPDX-License-Identifier: Apache-2.0
// See code.hpp.
#include "view/code.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace HEED_NAMESPACE::view {

constexpr float steps_per_octave = static_cast<float>(one_code - min_code) / octaves;

std::uint8_t code_of(float weight) {
  if (!std::isfinite(weight)) return not_finite_code;
  if (weight <= 0) return zero_code;
  const float step = std::round((std::log2(weight) + octaves) * steps_per_octave);
  return static_cast<std::uint8_t>(min_code +
                                   static_cast<int>(std::clamp(step, 0.0F, octaves * steps_per_octave)));
}

float weight_of(std::uint8_t code) {
  if (code == zero_code) return 0;
  if (code > one_code) return std::numeric_limits<float>::quiet_NaN();
  return std::exp2(static_cast<float>(code - min_code) / steps_per_octave - octaves);
}

}  // namespace HEED_NAMESPACE::view
