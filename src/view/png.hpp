// SPDX-License-Identifier: Apache-2.0
// A picture in pixels, saved as PNG (RFC 2083).
#pragma once
#include "view/drawing.hpp"

namespace heed::inline v0_2::view {

class PngDrawing : public Drawing {
 public:
  PngDrawing(std::int64_t width, std::int64_t height);
  void add_cells(const Box&, const Level&, double end_of_scale) override;
  void add_label(const Label&) override;  // ASCII; any other character is a small box
  std::string finish() override;

 private:
  void set(std::int64_t x, std::int64_t y, const Rgb&);

  std::int64_t width_, height_;
  std::vector<std::uint8_t> pixels_;  // rows of RGB, each after a byte of 0: no filter
};

}  // namespace heed::inline v0_2::view
