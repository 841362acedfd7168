// SPDX-License-Identifier: Apache-2.0
// Huffman codes of at most so many bits, numbered as deflate numbers them (RFC 1951, 3.2.2).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace HEED_NAMESPACE::view {

struct HuffmanCode {
  std::vector<std::uint8_t> lengths{};  // 0: the symbol does not occur
  std::vector<std::uint16_t> bits{};    // first bit lowest, as deflate's stream has it
};

HuffmanCode huffman_code(std::span<const std::uint32_t> counts, int longest);
HuffmanCode numbered(std::vector<std::uint8_t> lengths);

}  // namespace HEED_NAMESPACE::view
