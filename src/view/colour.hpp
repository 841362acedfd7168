// SPDX-License-Identifier: Apache-2.0
// The colours of weights in pictures: those of the page on light paper (page/colour.js).
#pragma once
#include <array>
#include <cstdint>

namespace heed::inline v0_2::view {

using Rgb = std::array<std::uint8_t, 3>;

constexpr Rgb paper = {255, 255, 255}, ink = {29, 28, 26}, quiet_ink = {109, 106, 100},
              rule = {212, 207, 197};
constexpr Rgb hidden_paper = {239, 236, 229}, hidden_line = {216, 210, 199},
              not_finite_colour = {214, 0, 108};

// From none (0) to the end of the scale (1): ever darker, so that a grey print and every eye have the same
// order.
Rgb colour_of(double strength);

// Codes to colours on a linear scale that ends at `largest`, hidden ones not among them.
std::array<Rgb, 256> colours_of_codes(double largest);

// A scale ends at the largest weight, but not below four times what equal weights would be.
double end_of_scale(float largest, std::int64_t keys);

}  // namespace heed::inline v0_2::view
