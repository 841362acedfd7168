// SPDX-License-Identifier: Apache-2.0
// Bytes as text that stands in a page (RFC 4648).
#pragma once
#include <string>
#include <string_view>

namespace HEED_NAMESPACE::view {

std::string base64(std::string_view bytes);

}  // namespace HEED_NAMESPACE::view
