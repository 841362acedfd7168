// SPDX-License-Identifier: Apache-2.0
// What embed.cmake makes of page/ and playground/page/: the viewer's page without its data, which is what
// stands before the title, the data and the end; and the playground.
#pragma once
#include <string_view>

namespace HEED_NAMESPACE::view {

extern const std::string_view page_before_title, page_before_data, page_after_data, playground_whole;

}  // namespace HEED_NAMESPACE::view
