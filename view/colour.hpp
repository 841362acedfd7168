// SPDX-License-Identifier: Apache-2.0
// The colours of pictures. Those of weights are the page's (page/colour.js), or greys for print.
#pragma once
#include <array>
#include <cstdint>

#include "heed/view.hpp"

namespace HEED_NAMESPACE::view {

using Rgb = std::array<std::uint8_t, 3>;

// What is not a weight.
struct Palette {
  Rgb paper, ink, quiet, rule, hidden, hatch;
};
const Palette& palette_of(Theme);
constexpr Rgb not_finite_colour = {214, 0, 108};

// From none (0) to the end of the scale (1): ever further from the paper in lightness, so that a grey print
// and every eye have the same order.
Rgb colour_of(double strength, Theme = Theme::light);

// Codes to colours on a linear scale that ends at `largest`, hidden ones not among them.
std::array<Rgb, 256> colours_of_codes(double largest, Theme = Theme::light);

// A scale ends at the largest weight, but not below four times what equal weights would be.
double end_of_scale(float largest, std::int64_t keys);

}  // namespace HEED_NAMESPACE::view
