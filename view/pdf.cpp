// SPDX-License-Identifier: Apache-2.0
// See pdf.hpp.
#include "view/pdf.hpp"

#include <array>
#include <cstdio>

#include "view/code.hpp"
#include "view/zlib.hpp"

namespace HEED_NAMESPACE::view {
namespace {

constexpr double font_size = 10;
constexpr double points = 0.75;  // of a pixel

// The widths of Helvetica's letters from space to tilde, in thousandths of its size.
constexpr std::array<int, 95> widths = {
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333,  278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667,
    611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667,  611, 722, 667, 944, 667,
    667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278,  556, 556, 222, 222, 500,
    222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500,  500, 334, 260, 334, 584};

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", x);
  return text;
}

std::string numbers(std::initializer_list<double> all) {
  std::string text;
  for (const double x : all) text += number(x) + " ";
  return text;
}

std::string triple(const Rgb& rgb) { return numbers({rgb[0] / 255.0, rgb[1] / 255.0, rgb[2] / 255.0}); }

// The bytes of text in the encoding of Windows' Latin letters, which every reader of PDF has Helvetica in.
std::string latin(std::string_view utf8) {
  std::string bytes;
  for (std::size_t i = 0; i < utf8.size();) {
    const auto c = static_cast<unsigned char>(utf8[i]);
    const std::size_t length = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    const unsigned code = length == 2 && i + 1 < utf8.size()
                              ? (c & 0x1FU) << 6 | (static_cast<unsigned char>(utf8[i + 1]) & 0x3FU)
                              : c;
    if (length == 1)
      bytes += c < 0x20 || c == 0x7F ? '?' : static_cast<char>(c);
    else
      bytes += length == 2 && code >= 0xA0 && code <= 0xFF ? static_cast<char>(code) : '?';
    i += length;
  }
  return bytes;
}

double width_of(const std::string& text) {
  double width = 0;
  for (const char c : text) width += c >= ' ' && c <= '~' ? widths[static_cast<std::size_t>(c - ' ')] : 556;
  return width * font_size / 1000;
}

std::string quoted(const std::string& text) {
  std::string safe = "(";
  for (const char c : text) {
    if (c == '(' || c == ')' || c == '\\') safe += '\\';
    safe += c;
  }
  return safe + ")";
}

std::string box_of(const Box& box) {
  return numbers({static_cast<double>(box.x), static_cast<double>(box.y), static_cast<double>(box.width),
                  static_cast<double>(box.height)});
}

// A file of numbered objects, and where each begins.
class Objects {
 public:
  void add(const std::string& body) {
    places_.push_back(text_.size());
    text_ += std::to_string(places_.size()) + " 0 obj\n" + body + "\nendobj\n";
  }
  void add_stream(const std::string& entries, const std::vector<std::uint8_t>& bytes) {
    const std::string packed = zlib_stream(bytes);
    add("<<" + entries + "/Filter/FlateDecode/Length " + std::to_string(packed.size()) + ">>\nstream\n" +
        packed + "\nendstream");
  }
  std::size_t count() const { return places_.size(); }
  // The first object is the catalogue.
  std::string finish() {
    const std::size_t table = text_.size();
    const std::string count = std::to_string(places_.size() + 1);
    text_ += "xref\n0 " + count + "\n0000000000 65535 f \n";
    for (const std::size_t place : places_) {
      char line[32];
      std::snprintf(line, sizeof line, "%010zu 00000 n \n", place);
      text_ += line;
    }
    return text_ + "trailer\n<</Size " + count + "/Root 1 0 R>>\nstartxref\n" + std::to_string(table) +
           "\n%%EOF\n";
  }

 private:
  std::string text_{"%PDF-1.5\n%\xE2\xE3\xCF\xD3\n"};
  std::vector<std::size_t> places_{};
};

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

PdfDrawing::PdfDrawing(std::int64_t width, std::int64_t height, Theme theme)
    : width_(width), height_(height), theme_(theme) {
  // From here on y points down, as it does for all drawings.
  content_ = numbers({points, 0, 0, -points, 0, points * static_cast<double>(height)}) + "cm\n" +
             triple(palette_of(theme).paper) + "rg " + box_of({0, 0, width, height}) + "re f\n";
}

void PdfDrawing::frame(const Box& box, const char* how) {
  content_ += triple(palette_of(theme_).rule) + "RG " + box_of(box) + "re " + how + "\n";
}

void PdfDrawing::add_hatching(const Box& box) {
  content_ += "/Pattern cs /Hidden scn ";
  frame(box, "B");
}

// An image fills the unit square, its first row on top.
void PdfDrawing::place(const Box& box, Image image) {
  images_.push_back(std::move(image));
  content_ += "q " +
              numbers({static_cast<double>(box.width), 0, 0, -static_cast<double>(box.height),
                       static_cast<double>(box.x), static_cast<double>(box.y + box.height)}) +
              "cm /I" + std::to_string(images_.size() - 1) + " Do Q\n";
}

void PdfDrawing::add_scale(const Box& box) {
  Image image{.columns = 256, .rows = 1};
  for (int n = 0; n < 256; ++n)
    for (const std::uint8_t byte : colour_of(n / 255.0, theme_)) image.colours.push_back(byte);
  place(box, std::move(image));
  frame(box, "S");
}

void PdfDrawing::add_cells(const Cells& cells) {
  const Level& level = *cells.level;
  const std::array<Rgb, 256> colours = colours_of_codes(cells.end_of_scale, theme_);
  Image image{.columns = level.columns, .rows = level.rows};
  bool hides = false;
  for (const std::uint8_t code : level.largest) {
    const Rgb& colour = code == hidden_code ? palette_of(theme_).hidden : colours[code];
    image.colours.insert(image.colours.end(), colour.begin(), colour.end());
    image.shown.push_back(code == hidden_code ? 0 : 255);
    hides = hides || code == hidden_code;
  }
  if (hides)
    add_hatching(cells.box);
  else
    image.shown.clear();
  place(cells.box, std::move(image));
  frame(cells.box, "S");
}

void PdfDrawing::add_label(const Label& label) {
  const Palette& palette = palette_of(theme_);
  const std::string text = latin(label.text);
  const bool is_middle = label.way == Label::Way::middle || label.way == Label::Way::up_middle;
  const double back = label.way == Label::Way::left ? width_of(text) : is_middle ? width_of(text) / 2 : 0;
  const double down = 0.36 * font_size;  // from the middle of small letters to what they stand on
  const double x = static_cast<double>(label.x), y = static_cast<double>(label.y);
  content_ += "BT /F " + number(font_size) + " Tf " + triple(label.is_quiet ? palette.quiet : palette.ink) +
              "rg " +
              (is_turned(label.way) ? numbers({0, -1, -1, 0, x + down, y + back})
                                    : numbers({1, 0, 0, -1, x - back, y + down})) +
              "Tm " + quoted(text) + " Tj ET\n";
}

std::string PdfDrawing::finish() {
  std::string names;
  std::size_t next = 7;
  for (std::size_t n = 0; n < images_.size(); ++n) {
    names += "/I" + std::to_string(n) + " " + std::to_string(next) + " 0 R";
    next += images_[n].shown.empty() ? 1 : 2;
  }
  const Palette& palette = palette_of(theme_);
  Objects objects;
  objects.add("<</Type/Catalog/Pages 2 0 R>>");
  objects.add("<</Type/Pages/Kids[3 0 R]/Count 1>>");
  objects.add("<</Type/Page/Parent 2 0 R/MediaBox[0 0 " +
              numbers({points * static_cast<double>(width_), points * static_cast<double>(height_)}) +
              "]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>/Pattern<</Hidden 6 0 R>>/XObject<<" + names +
              ">>>>>>");
  objects.add_stream("", bytes_of(content_));
  objects.add("<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>");
  objects.add_stream(
      "/Type/Pattern/PatternType 1/PaintType 1/TilingType 1/BBox[0 0 4 4]/XStep 4/YStep 4/Resources<<>>"
      "/Matrix[0.53 0.53 -0.53 0.53 0 0]",
      bytes_of(triple(palette.hidden) + "rg 0 0 4 4 re f " + triple(palette.hatch) + "rg 0 0 0.8 4 re f"));
  for (const Image& image : images_) {
    const std::string extent = "/Type/XObject/Subtype/Image/Width " + std::to_string(image.columns) +
                               "/Height " + std::to_string(image.rows) +
                               "/BitsPerComponent 8/Interpolate false";
    const std::string mask =
        image.shown.empty() ? "" : "/SMask " + std::to_string(objects.count() + 2) + " 0 R";
    objects.add_stream(extent + "/ColorSpace/DeviceRGB" + mask, image.colours);
    if (!image.shown.empty()) objects.add_stream(extent + "/ColorSpace/DeviceGray", image.shown);
  }
  return objects.finish();
}

}  // namespace HEED_NAMESPACE::view
