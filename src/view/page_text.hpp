// SPDX-License-Identifier: Apache-2.0
// The page without its data, as embed.cmake makes it from page/: what stands before the title, the data and
// the end.
#pragma once
#include <string_view>

namespace heed::inline v0_2::view {

extern const std::string_view page_before_title, page_before_data, page_after_data;

}  // namespace heed::inline v0_2::view
