// SPDX-License-Identifier: Apache-2.0
// What a picture is drawn on: paper that becomes a PNG, an SVG or a PDF file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "view/colour.hpp"
#include "view/pyramid.hpp"

namespace HEED_NAMESPACE::view {

struct Box {
  std::int64_t x = 0, y = 0, width = 0, height = 0;
};

// A level in its colours, as wide as the box says.
struct Cells {
  Box box{};
  const Level* level = nullptr;
  double end_of_scale = 1;
};

struct Label {
  // How the text lies to its point: it begins there, ends there or has its middle there; `up` is turned by a
  // quarter.
  enum class Way : std::uint8_t { right, left, middle, up, up_middle };
  std::string_view text{};
  std::int64_t x = 0, y = 0;  // the middle of the line
  Way way = Way::right;
  bool is_quiet = false;
};
constexpr bool is_turned(Label::Way way) { return way == Label::Way::up || way == Label::Way::up_middle; }

constexpr std::int64_t letter_width = 6, letter_height = 10;  // of a label, at most and about

class Drawing {
 public:
  virtual ~Drawing() = default;
  virtual void add_cells(const Cells&) = 0;   // with hatching where they are hidden
  virtual void add_hatching(const Box&) = 0;  // what is hidden looks like
  virtual void add_scale(const Box&) = 0;     // all colours, from none to the end of the scale
  virtual void add_label(const Label&) = 0;
  virtual std::string finish() = 0;
};

}  // namespace HEED_NAMESPACE::view
