// SPDX-License-Identifier: Apache-2.0
// See colour.hpp.
#include "view/colour.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "view/code.hpp"

namespace HEED_NAMESPACE::view {
namespace {

std::uint8_t byte_of(double linear) {
  const double curved = linear <= 0.0031308 ? 12.92 * linear : 1.055 * std::pow(linear, 1 / 2.4) - 0.055;
  return static_cast<std::uint8_t>(std::lround(255 * std::clamp(curved, 0.0, 1.0)));
}

double cube(double x) { return x * x * x; }

// OKLCH, a space in which equal steps look equal, to sRGB.
Rgb from_oklch(double lightness, double chroma, double degrees) {
  const double a = chroma * std::cos(degrees * std::numbers::pi / 180),
               b = chroma * std::sin(degrees * std::numbers::pi / 180);
  const double l = cube(lightness + 0.3963377774 * a + 0.2158037573 * b);
  const double m = cube(lightness - 0.1055613458 * a - 0.0638541728 * b);
  const double s = cube(lightness - 0.0894841775 * a - 1.291485548 * b);
  return {byte_of(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          byte_of(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          byte_of(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s)};
}

}  // namespace

const Palette& palette_of(Theme theme) {
  static constexpr Palette palettes[] = {{.paper = {255, 255, 255},
                                          .ink = {29, 28, 26},
                                          .quiet = {98, 95, 89},
                                          .rule = {212, 207, 197},
                                          .hidden = {235, 231, 222},
                                          .hatch = {185, 178, 164}},
                                         {.paper = {18, 20, 24},
                                          .ink = {236, 233, 227},
                                          .quiet = {169, 165, 157},
                                          .rule = {70, 76, 88},
                                          .hidden = {22, 24, 29},
                                          .hatch = {89, 96, 109}},
                                         {.paper = {255, 255, 255},
                                          .ink = {0, 0, 0},
                                          .quiet = {70, 70, 70},
                                          .rule = {150, 150, 150},
                                          .hidden = {255, 255, 255},
                                          .hatch = {170, 170, 170}}};
  return palettes[static_cast<std::size_t>(theme)];
}

// The colours of the page (page/colour.js): their chroma is below what sRGB has, so that none is clipped.
Rgb colour_of(double t, Theme theme) {
  if (theme == Theme::print) return from_oklch(0.95 - 0.85 * t, 0, 0);
  const double u = 1 - t, t4 = t * t * t * t;
  if (theme == Theme::dark) return from_oklch(0.34 + 0.61 * t, 0.05 + 0.12 * t - 0.065 * t4, 275 - 175 * t);
  return from_oklch(0.97 - 0.67 * t, 0.045 + 0.36 * t * u * u + 0.07 * t4, 100 + 172 * t);
}

std::array<Rgb, 256> colours_of_codes(double largest, Theme theme) {
  std::array<Rgb, 256> colours;
  for (std::size_t code = 0; code < colours.size(); ++code) {
    const double weight = static_cast<double>(weight_of(static_cast<std::uint8_t>(code)));
    colours[code] =
        std::isnan(weight) ? not_finite_colour : colour_of(std::min(1.0, weight / largest), theme);
  }
  return colours;
}

double end_of_scale(float largest, std::int64_t keys) {
  return std::min(1.0, std::max(4 / static_cast<double>(keys), static_cast<double>(largest)));
}

}  // namespace HEED_NAMESPACE::view
