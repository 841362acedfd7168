// SPDX-License-Identifier: Apache-2.0
// See svg.hpp.
#include "view/svg.hpp"

#include <map>

#include "view/code.hpp"

namespace HEED_NAMESPACE::view {
namespace {

std::string hex(const Rgb& colour) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text = "#";
  for (const std::uint8_t byte : colour) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

// Characters that XML does not know, even escaped, are replaced by one that says so.
std::string escaped(std::string_view text) {
  std::string safe;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else if (c == '&')
      safe += "&amp;";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F || text.substr(i, 3) == "\uFFFE" ||
             text.substr(i, 3) == "\uFFFF") {
      safe += "\uFFFD";
      if (static_cast<unsigned char>(c) >= 0x80) i += 2;
    } else
      safe += c;
  }
  return safe;
}

std::string attribute(const char* name, std::int64_t value) {
  return std::string(" ") + name + "=\"" + std::to_string(value) + "\"";
}

std::string frame_of(const Box& box) {
  return attribute("x", box.x) + attribute("y", box.y) + attribute("width", box.width) +
         attribute("height", box.height);
}

}  // namespace

SvgDrawing::SvgDrawing(std::int64_t width, std::int64_t height, Theme theme) : theme_(theme) {
  const Palette& palette = palette_of(theme);
  text_ =
      "<svg xmlns=\"http://www.w3.org/2000/svg\"" + attribute("width", width) + attribute("height", height) +
      " viewBox=\"0 0 " + std::to_string(width) + " " + std::to_string(height) +
      "\" font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\" font-size=\"10\">\n"
      "<defs><pattern id=\"hidden\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\">"
      "<rect width=\"4\" height=\"4\" fill=\"" +
      hex(palette.hidden) + "\"/><rect width=\"0.8\" height=\"4\" fill=\"" + hex(palette.hatch) +
      "\"/></pattern><linearGradient id=\"scale\">";
  constexpr int stops = 32;
  for (int n = 0; n <= stops; ++n)
    text_ += "<stop offset=\"" + std::to_string(static_cast<double>(n) / stops) + "\" stop-color=\"" +
             hex(colour_of(static_cast<double>(n) / stops, theme)) + "\"/>";
  text_ += "</linearGradient></defs>\n<rect width=\"100%\" height=\"100%\" fill=\"" + hex(palette.paper) +
           "\"/>\n";
}

void SvgDrawing::add_hatching(const Box& box) {
  text_ +=
      "<rect" + frame_of(box) + " fill=\"url(#hidden)\" stroke=\"" + hex(palette_of(theme_).rule) + "\"/>\n";
}

void SvgDrawing::add_scale(const Box& box) {
  text_ +=
      "<rect" + frame_of(box) + " fill=\"url(#scale)\" stroke=\"" + hex(palette_of(theme_).rule) + "\"/>\n";
}

// One path for all cells of a colour, cells beside each other as one.
void SvgDrawing::add_cells(const Cells& cells) {
  const Level& level = *cells.level;
  const std::array<Rgb, 256> colours = colours_of_codes(cells.end_of_scale, theme_);
  std::map<Rgb, std::string> paths;
  for (std::int64_t row = 0; row < level.rows; ++row)
    for (std::int64_t column = 0, end = 0; column < level.columns; column = end) {
      const auto code = [&](std::int64_t at) {
        return level.largest[static_cast<std::size_t>(row * level.columns + at)];
      };
      for (end = column + 1; end < level.columns && code(end) == code(column);) ++end;
      if (code(column) == hidden_code) continue;
      const std::string run = std::to_string(end - column);
      paths[colours[code(column)]] +=
          "M" + std::to_string(column) + " " + std::to_string(row) + "h" + run + "v1h-" + run + "z";
    }
  const Box& box = cells.box;
  add_hatching(box);
  text_ += "<g shape-rendering=\"crispEdges\" transform=\"translate(" + std::to_string(box.x) + " " +
           std::to_string(box.y) + ") scale(" +
           std::to_string(static_cast<double>(box.width) / static_cast<double>(level.columns)) + " " +
           std::to_string(static_cast<double>(box.height) / static_cast<double>(level.rows)) + ")\">\n";
  for (const auto& [colour, path] : paths)
    text_ += "<path fill=\"" + hex(colour) + "\" d=\"" + path + "\"/>\n";
  text_ += "</g>\n";
}

void SvgDrawing::add_label(const Label& label) {
  const Palette& palette = palette_of(theme_);
  const char* anchor = label.way == Label::Way::left                                           ? "end"
                       : label.way == Label::Way::middle || label.way == Label::Way::up_middle ? "middle"
                                                                                               : "start";
  text_ += "<text dominant-baseline=\"central\" fill=\"" + hex(label.is_quiet ? palette.quiet : palette.ink) +
           "\" text-anchor=\"" + anchor + "\" transform=\"translate(" + std::to_string(label.x) + " " +
           std::to_string(label.y) + ")" + (is_turned(label.way) ? " rotate(-90)" : "") + "\">" +
           escaped(label.text) + "</text>\n";
}

std::string SvgDrawing::finish() { return text_ + "</svg>\n"; }

}  // namespace HEED_NAMESPACE::view
