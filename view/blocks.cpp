// SPDX-License-Identifier: Apache-2.0
// See blocks.hpp.
#include "view/blocks.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "view/code.hpp"
#include "view/colour.hpp"

namespace HEED_NAMESPACE::view {
namespace {

constexpr std::size_t label_width = 12;

// To the right of its column. Characters that would move the cursor, or are not ASCII and may be of any
// width, are dots.
std::string label_of(const std::string& token) {
  std::string label;
  for (const char c : token) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;
    label += c >= ' ' && c <= '~' ? c : '.';
  }
  label = label.substr(0, label_width);
  return std::string(label_width - label.size(), ' ') + label + " ";
}

std::string cell_of(std::uint8_t code, double end_of_scale) {
  constexpr std::array<const char*, 5> shades = {"  ", "░░", "▒▒", "▓▓", "██"};
  if (code == hidden_code) return "··";
  if (code == not_finite_code) return "??";
  const double strength = std::min(1.0, static_cast<double>(weight_of(code)) / end_of_scale);
  return shades[static_cast<std::size_t>(std::ceil(strength * 4 - 0.1))];
}

std::string coloured_cell(std::uint8_t code, const std::array<Rgb, 256>& colours) {
  const Rgb& colour = code == hidden_code ? palette_of(Theme::light).hidden : colours[code];
  std::string text = "\x1b[48;2;";
  for (std::size_t i = 0; i < 3; ++i) text += std::to_string(colour[i]) + (i < 2 ? ";" : "m");
  return text + (code == hidden_code ? "\x1b[38;2;176;170;160m╱╱" : "  ");
}

}  // namespace

std::string blocks(const Blocks& shown) {
  const Level& level = shown.level;
  const std::array<Rgb, 256> colours = colours_of_codes(shown.end_of_scale);
  const bool has_labels = level.log2_pool == 0 && !shown.tokens.empty();
  std::string text;
  for (std::int64_t row = 0; row < level.rows; ++row) {
    if (has_labels) text += label_of(shown.tokens[static_cast<std::size_t>(row)]);
    for (std::int64_t column = 0; column < level.columns; ++column) {
      const std::uint8_t code = level.largest[static_cast<std::size_t>(row * level.columns + column)];
      text += shown.has_colours ? coloured_cell(code, colours) : cell_of(code, shown.end_of_scale);
    }
    text += shown.has_colours ? "\x1b[0m\n" : "\n";
  }
  return text;
}

}  // namespace HEED_NAMESPACE::view
