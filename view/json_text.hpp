// SPDX-License-Identifier: Apache-2.0
// JSON that may stand inside a page: whatever a string holds, it cannot end the element around it.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace HEED_NAMESPACE::view {

// In quotes. `<`, `>`, `&`, U+2028, U+2029 and control characters are written as \uNNNN.
std::string json_of(std::string_view utf8);
std::string json_of(double);  // null where it is not finite
std::string json_of(const std::vector<std::string>&);
// Values are JSON already.
std::string json_list(const std::vector<std::string>& values);
std::string json_object(std::initializer_list<std::pair<std::string_view, std::string>> members);

}  // namespace HEED_NAMESPACE::view
