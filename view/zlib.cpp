// SPDX-License-Identifier: Apache-2.0
// See zlib.hpp.
#include "view/zlib.hpp"

#include "view/deflate.hpp"

namespace HEED_NAMESPACE::view {

std::string big_endian(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xFF);
  return bytes;
}

std::string zlib_stream(const std::vector<std::uint8_t>& bytes) {
  std::uint32_t a = 1, b = 0;
  for (const std::uint8_t byte : bytes) {
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  return "\x78\x9c" + deflate(bytes) + big_endian(b << 16 | a);
}

}  // namespace HEED_NAMESPACE::view
