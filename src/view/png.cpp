// SPDX-License-Identifier: Apache-2.0
// See png.hpp.
#include "view/png.hpp"

#include <algorithm>

#include "view/code.hpp"
#include "view/deflate.hpp"
#include "view/font.hpp"

namespace heed::inline v0_2::view {
namespace {

std::string big_endian(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xFF);
  return bytes;
}

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

// What zlib puts around deflate (RFC 1950).
std::string zlib_stream(const std::vector<std::uint8_t>& bytes) {
  std::uint32_t a = 1, b = 0;
  for (const std::uint8_t byte : bytes) {
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  return "\x78\x9c" + deflate(bytes) + big_endian(b << 16 | a);
}

}  // namespace

PngDrawing::PngDrawing(std::int64_t width, std::int64_t height) : width_(width), height_(height) {
  pixels_.assign(static_cast<std::size_t>(height * (3 * width + 1)), 255);
  for (std::int64_t y = 0; y < height; ++y) pixels_[static_cast<std::size_t>(y * (3 * width + 1))] = 0;
}

void PngDrawing::set(std::int64_t x, std::int64_t y, const Rgb& colour) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
  std::copy(colour.begin(), colour.end(), pixels_.begin() + (y * (3 * width_ + 1) + 1 + 3 * x));
}

void PngDrawing::add_cells(const Box& box, const Level& level, double end_of_scale) {
  const std::array<Rgb, 256> colours = colours_of_codes(end_of_scale);
  for (std::int64_t y = -1; y <= box.height; ++y)
    for (std::int64_t x = -1; x <= box.width; ++x) {
      const bool is_frame = y < 0 || x < 0 || y == box.height || x == box.width;
      const std::int64_t row = y * level.rows / box.height, column = x * level.columns / box.width;
      const std::uint8_t code =
          is_frame ? std::uint8_t{0} : level.largest[static_cast<std::size_t>(row * level.columns + column)];
      const Rgb& hatched = (x + y) % 6 == 0 ? hidden_line : hidden_paper;
      set(box.x + x, box.y + y, is_frame ? rule : code == hidden_code ? hatched : colours[code]);
    }
}

void PngDrawing::add_label(const Label& label) {
  constexpr std::int64_t dot = 2;  // pixels; a letter is six dots by eight
  const auto length = static_cast<std::int64_t>(letters_of(label.text).size()) * letter_width - dot;
  std::int64_t along = label.way == Label::Way::left ? -length : 0;
  for (const Glyph& glyph : letters_of(label.text)) {
    for (std::int64_t column = 0; column < 5; ++column)
      for (std::int64_t line = 0; line < 8; ++line) {
        if ((glyph[static_cast<std::size_t>(column)] >> line & 1) == 0) continue;
        for (std::int64_t i = 0; i < dot * dot; ++i) {
          const std::int64_t u = along + column * dot + i % dot, v = (line - 4) * dot + i / dot;
          if (label.way == Label::Way::up)
            set(label.x + v, label.y - u, label.colour);
          else
            set(label.x + u, label.y + v, label.colour);
        }
      }
    along += letter_width;
  }
}

std::string PngDrawing::finish() {
  const std::string header = big_endian(static_cast<std::uint32_t>(width_)) +
                             big_endian(static_cast<std::uint32_t>(height_)) +
                             std::string("\x08\x02\x00\x00\x00", 5);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", zlib_stream(pixels_)) +
         chunk("IEND", "");
}

}  // namespace heed::inline v0_2::view
