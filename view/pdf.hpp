// SPDX-License-Identifier: Apache-2.0
// A picture on one page of PDF (ISO 32000): cells as images, text as text.
#pragma once
#include <vector>

#include "view/drawing.hpp"

namespace HEED_NAMESPACE::view {

class PdfDrawing : public Drawing {
 public:
  PdfDrawing(std::int64_t width, std::int64_t height, Theme);
  void add_cells(const Cells&) override;
  void add_hatching(const Box&) override;
  void add_scale(const Box&) override;
  void add_label(const Label&) override;  // Latin letters; of others a question mark
  std::string finish() override;

 private:
  struct Image {
    std::int64_t columns = 0, rows = 0;
    std::vector<std::uint8_t> colours{};  // three of each
    std::vector<std::uint8_t> shown{};    // 255, and 0 where the hatching below is seen; none: all are shown
  };
  void place(const Box&, Image);
  void frame(const Box&, const char* how);

  std::int64_t width_, height_;
  Theme theme_;
  std::string content_{};
  std::vector<Image> images_{};
};

}  // namespace HEED_NAMESPACE::view
