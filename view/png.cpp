// SPDX-License-Identifier: Apache-2.0
// See png.hpp.
#include "view/png.hpp"

#include <algorithm>
#include <cmath>

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

void PngDrawing::blend(std::int64_t x, std::int64_t y, const Rgb& ink, double covered) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
  const auto at = static_cast<std::size_t>(y * (3 * width_ + 1) + 1 + 3 * x);
  for (std::size_t c = 0; c < 3; ++c) {
    const double below = pixels_[at + c];
    pixels_[at + c] = static_cast<std::uint8_t>(std::lround(below + covered * (ink[c] - below)));
  }
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
  constexpr double pen = 0.42;                        // half its width, in dots
  const std::vector<Glyph> letters = letters_of(label.text);
  const auto length = static_cast<std::int64_t>(letters.size()) * advance - dot;
  std::int64_t along = label.way == Label::Way::left                                           ? -length
                       : label.way == Label::Way::middle || label.way == Label::Way::up_middle ? -length / 2
                                                                                               : 0;
  const Rgb& ink = label.is_quiet ? palette.quiet : palette.ink;
  for (const Glyph& glyph : letters) {
    const std::vector<Stroke> strokes = strokes_of(glyph);
    for (std::int64_t u = -1; u <= advance; ++u)
      for (std::int64_t v = -1; v <= 8 * dot; ++v) {
        // How much of the pixel the pen covers; a dot's middle is half a dot from its corner.
        const double x = (static_cast<double>(u) + 0.5) / dot - 0.5,
                     y = (static_cast<double>(v) + 0.5) / dot - 0.5;
        const double covered = std::clamp((pen - distance_to(strokes, x, y)) * dot + 0.5, 0.0, 1.0);
        if (covered == 0) continue;
        const std::int64_t along_line = along + u, across = v - 4 * dot;
        if (is_turned(label.way))
          blend(fineness * label.x + across, fineness * label.y - along_line, ink, covered);
        else
          blend(fineness * label.x + along_line, fineness * label.y + across, ink, covered);
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
