// SPDX-License-Identifier: Apache-2.0
// Letters of five by eight dots for pictures in pixels.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace HEED_NAMESPACE::view {

// Columns from the left; the lowest bit is the dot on top.
using Glyph = std::array<std::uint8_t, 5>;

// One for each character of UTF-8. What is not ASCII, or has no ink there, is a box.
std::vector<Glyph> letters_of(std::string_view utf8);

}  // namespace HEED_NAMESPACE::view
