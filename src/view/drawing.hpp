// SPDX-License-Identifier: Apache-2.0
// What a picture is drawn on: paper that becomes a PNG or an SVG file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "view/colour.hpp"
#include "view/pyramid.hpp"

namespace heed::inline v0_2::view {

struct Box {
  std::int64_t x = 0, y = 0, width = 0, height = 0;
};

struct Label {
  enum class Way : std::uint8_t {
    right,
    left,
    up
  };  // how the text runs from its point: up is turned by a quarter
  std::string_view text{};
  std::int64_t x = 0, y = 0;  // the middle of the line, where the text begins
  Way way = Way::right;
  Rgb colour = ink;
};

constexpr std::int64_t letter_width = 12, letter_height = 16;  // of a label, pixels

class Drawing {
 public:
  virtual ~Drawing() = default;
  // A level in a box, with hatching where it is hidden.
  virtual void add_cells(const Box&, const Level&, double end_of_scale) = 0;
  virtual void add_label(const Label&) = 0;
  virtual std::string finish() = 0;
};

}  // namespace heed::inline v0_2::view
