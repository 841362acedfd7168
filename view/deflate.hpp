// SPDX-License-Identifier: Apache-2.0
// Compression as every browser and every reader of PNG undoes it: deflate (RFC 1951).
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace HEED_NAMESPACE::view {

std::string deflate(std::span<const std::uint8_t> bytes);

}  // namespace HEED_NAMESPACE::view
