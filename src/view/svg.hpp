// SPDX-License-Identifier: Apache-2.0
// A picture in shapes and text, saved as SVG.
#pragma once
#include "view/drawing.hpp"

namespace heed::inline v0_2::view {

class SvgDrawing : public Drawing {
 public:
  SvgDrawing(std::int64_t width, std::int64_t height);
  void add_cells(const Box&, const Level&, double end_of_scale) override;
  void add_label(const Label&) override;
  std::string finish() override;

 private:
  std::string text_;
};

}  // namespace heed::inline v0_2::view
