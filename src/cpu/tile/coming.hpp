// SPDX-License-Identifier: Apache-2.0
// Rows of keys or values that decode will want a little later, asked for line by line while it works on
// others.
#pragma once
#include <cstdint>

#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Where they lie: `width` bytes each, `apart` bytes from each other.
struct Coming {
  const char* row = nullptr;
  std::int64_t width = 0, apart = 0;
};

// Touches them line by line, row after row.
template <Vector S>
struct Touch {
  Coming rows;
  std::int64_t column = 0;

  void line() {
    S::touch(rows.row + column);
    column += 64;
    if (column >= rows.width) column = 0, rows.row += rows.apart;
  }
  void lines(std::int64_t count) {
    for (; count > 0; --count) line();
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
