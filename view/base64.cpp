// SPDX-License-Identifier: Apache-2.0
// See base64.hpp.
#include "view/base64.hpp"

#include <cstdint>

namespace HEED_NAMESPACE::view {

std::string base64(std::string_view bytes) {
  constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t n = 0; n < 3; ++n)
      three = three << 8 | (i + n < bytes.size() ? static_cast<std::uint8_t>(bytes[i + n]) : 0U);
    for (std::size_t n = 0; n < 4; ++n)
      text += i + n <= bytes.size() ? digits[(three >> (18 - 6 * n)) & 63] : '=';
  }
  return text;
}

}  // namespace HEED_NAMESPACE::view
