// SPDX-License-Identifier: Apache-2.0
// A picture in shapes and text, saved as SVG.
#pragma once
#include "view/drawing.hpp"

namespace HEED_NAMESPACE::view {

class SvgDrawing : public Drawing {
 public:
  SvgDrawing(std::int64_t width, std::int64_t height, Theme);
  void add_cells(const Cells&) override;
  void add_hatching(const Box&) override;
  void add_scale(const Box&) override;
  void add_label(const Label&) override;
  std::string finish() override;

 private:
  std::string text_;
  Theme theme_;
};

}  // namespace HEED_NAMESPACE::view
