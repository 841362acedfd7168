// SPDX-License-Identifier: Apache-2.0
// Letters for pictures in pixels: the dots that a pen goes through, and the lines that it draws between them.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "heed/version.hpp"

namespace HEED_NAMESPACE::view {

// Columns from the left; the lowest bit is the dot on top.
using Glyph = std::array<std::uint8_t, 5>;

// One for each character of UTF-8. What is not ASCII, or has no ink there, is a box.
std::vector<Glyph> letters_of(std::string_view utf8);

// A line of the pen, between two dots; a dot by itself where both are the same.
struct Stroke {
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
};

// Dots that touch are joined; those that touch at their corners alone, across the corner.
std::vector<Stroke> strokes_of(const Glyph& glyph);

// How far a point is from the nearest stroke, in dots.
double distance_to(const std::vector<Stroke>& strokes, double x, double y);

}  // namespace HEED_NAMESPACE::view
