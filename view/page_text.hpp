// SPDX-License-Identifier: Apache-2.0
// What embed.cmake makes of page/ and playground/page/: the viewer's page without its data, which is what
// stands before the title, the data, the rest of the data and the end; and the playground.
#pragma once
#include <string_view>

#include "heed/version.hpp"

namespace HEED_NAMESPACE::view {

extern const std::string_view page_before_title, page_before_data, page_before_rest, page_after_rest;
extern const std::string_view playground_whole;

}  // namespace HEED_NAMESPACE::view
