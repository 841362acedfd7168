// SPDX-License-Identifier: Apache-2.0
// Bytes as zlib packs them (RFC 1950): what PNG and PDF hold.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace HEED_NAMESPACE::view {

std::string zlib_stream(const std::vector<std::uint8_t>&);

std::string big_endian(std::uint32_t);

}  // namespace HEED_NAMESPACE::view
