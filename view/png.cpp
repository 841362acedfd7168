// SPDX-License-Identifier: Apache-2.0
// See png.hpp.
#include "view/png.hpp"

#include <algorithm>

#include "view/code.hpp"
#include "view/font.hpp"
#include "view/zlib.hpp"

namespace HEED_NAMESPACE::view {
namespace {

std::uint32_t crc_of(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320U : 0);
  }
  return ~crc;
}

std::string chunk(const std::string& type, const std::string& data) {
  return big_endian(static_cast<std::uint32_t>(data.size())) + type + data + big_endian(crc_of(type + data));
}

constexpr std::int64_t fineness = 2;  // pixels to the drawing's

}  // namespace

PngDrawing::PngDrawing(std::int64_t width, std::int64_t height, Theme theme)
    : theme_(theme), width_(fineness * width), height_(fineness * height) {
  pixels_.assign(static_cast<std::size_t>(height_ * (3 * width_ + 1)), 0);
  for (std::int64_t y = 0; y < height_; ++y)
    for (std::int64_t x = 0; x < width_; ++x) set(x, y, palette_of(theme).paper);
}

void PngDrawing::set(std::int64_t x, std::int64_t y, const Rgb& colour) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
  std::copy(colour.begin(), colour.end(), pixels_.begin() + (y * (3 * width_ + 1) + 1 + 3 * x));
}

template <class ColourAt>
void PngDrawing::fill(const Box& box, const ColourAt& colour_at) {
  const std::int64_t width = fineness * box.width, height = fineness * box.height;
  for (std::int64_t y = -1; y <= height; ++y)
    for (std::int64_t x = -1; x <= width; ++x) {
      const bool is_frame = y < 0 || x < 0 || y == height || x == width;
      set(fineness * box.x + x, fineness * box.y + y, is_frame ? palette_of(theme_).rule : colour_at(x, y));
    }
}

void PngDrawing::add_hatching(const Box& box) {
  const Palette& palette = palette_of(theme_);
  fill(box, [&](std::int64_t x, std::int64_t y) { return (x + y) % 7 < 1 ? palette.hatch : palette.hidden; });
}

void PngDrawing::add_scale(const Box& box) {
  const double last = static_cast<double>(fineness * box.width - 1);
  fill(box, [&](std::int64_t x, std::int64_t) { return colour_of(static_cast<double>(x) / last, theme_); });
}

void PngDrawing::add_cells(const Cells& cells) {
  const Level& level = *cells.level;
  const Palette& palette = palette_of(theme_);
  const std::array<Rgb, 256> colours = colours_of_codes(cells.end_of_scale, theme_);
  fill(cells.box, [&](std::int64_t x, std::int64_t y) {
    const std::int64_t row = y * level.rows / (fineness * cells.box.height),
                       column = x * level.columns / (fineness * cells.box.width);
    const std::uint8_t code = level.largest[static_cast<std::size_t>(row * level.columns + column)];
    return code != hidden_code ? colours[code] : (x + y) % 7 < 1 ? palette.hatch : palette.hidden;
  });
}

void PngDrawing::add_label(const Label& label) {
  const Palette& palette = palette_of(theme_);
  constexpr std::int64_t dot = 2, advance = 6 * dot;  // pixels; a letter is six dots by eight
  const std::vector<Glyph> letters = letters_of(label.text);
  const auto length = static_cast<std::int64_t>(letters.size()) * advance - dot;
  std::int64_t along = label.way == Label::Way::left                                           ? -length
                       : label.way == Label::Way::middle || label.way == Label::Way::up_middle ? -length / 2
                                                                                               : 0;
  for (const Glyph& glyph : letters) {
    for (std::int64_t column = 0; column < 5; ++column)
      for (std::int64_t line = 0; line < 8; ++line) {
        if ((glyph[static_cast<std::size_t>(column)] >> line & 1) == 0) continue;
        for (std::int64_t i = 0; i < dot * dot; ++i) {
          const std::int64_t u = along + column * dot + i % dot, v = (line - 4) * dot + i / dot;
          const Rgb& colour = label.is_quiet ? palette.quiet : palette.ink;
          if (is_turned(label.way))
            set(fineness * label.x + v, fineness * label.y - u, colour);
          else
            set(fineness * label.x + u, fineness * label.y + v, colour);
        }
      }
    along += advance;
  }
}

std::string PngDrawing::finish() {
  const std::string header = big_endian(static_cast<std::uint32_t>(width_)) +
                             big_endian(static_cast<std::uint32_t>(height_)) +
                             std::string("\x08\x02\x00\x00\x00", 5);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", zlib_stream(pixels_)) +
         chunk("IEND", "");
}

}  // namespace HEED_NAMESPACE::view
