// SPDX-License-Identifier: Apache-2.0
// A picture in pixels, saved as PNG (RFC 2083): two by two of them for each of the drawing's, since paper is
// finer than a screen.
#pragma once
#include "heed/version.hpp"
#include "view/drawing.hpp"

namespace HEED_NAMESPACE::view {

class PngDrawing : public Drawing {
 public:
  PngDrawing(std::int64_t width, std::int64_t height, Theme);
  void add_cells(const Cells&) override;
  void add_hatching(const Box&) override;
  void add_scale(const Box&) override;
  void add_label(const Label&) override;  // ASCII; any other character is a small box
  std::string finish() override;

 private:
  void set(std::int64_t x, std::int64_t y, const Rgb&);
  void blend(std::int64_t x, std::int64_t y, const Rgb& ink, double covered);  // `covered`: of the pixel
  template <class ColourAt>
  void fill(const Box&, const ColourAt&);  // with a frame around it

  Theme theme_;
  std::int64_t width_, height_;       // pixels
  std::vector<std::uint8_t> pixels_;  // rows of RGB, each after a byte of 0: no filter
};

}  // namespace HEED_NAMESPACE::view
