// SPDX-License-Identifier: Apache-2.0
// See json_text.hpp.
#include "view/json_text.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace HEED_NAMESPACE::view {
namespace {

std::string escaped(unsigned unit) {
  constexpr char digits[] = "0123456789abcdef";
  return {
      '\\', 'u', digits[unit >> 12 & 15], digits[unit >> 8 & 15], digits[unit >> 4 & 15], digits[unit & 15]};
}

}  // namespace

std::string json_of(std::string_view utf8) {
  std::string text = "\"";
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    const std::string_view three = utf8.substr(i, 3);
    if (three == "\u2028" || three == "\u2029") {
      text += escaped(three == "\u2028" ? 0x2028 : 0x2029);
      i += 2;
    } else if (byte < 0x20 || byte == 0x7F || byte == '"' || byte == '\\' || byte == '<' || byte == '>' ||
               byte == '&') {
      text += escaped(byte);
    } else {
      text += utf8[i];
    }
  }
  return text + '"';
}

std::string json_of(double number) {
  if (!std::isfinite(number)) return "null";
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  return {digits.data(), end};
}

std::string json_of(const std::vector<std::string>& strings) {
  std::vector<std::string> values;
  for (const std::string& each : strings) values.push_back(json_of(std::string_view(each)));
  return json_list(values);
}

std::string json_list(const std::vector<std::string>& values) {
  std::string text = "[";
  for (const std::string& value : values) {
    if (text.size() > 1) text += ',';
    text += value;
  }
  return text + ']';
}

std::string json_object(std::initializer_list<std::pair<std::string_view, std::string>> members) {
  std::string text = "{";
  for (const auto& [name, value] : members) {
    if (text.size() > 1) text += ',';
    text += '"';
    text += name;
    text += "\":";
    text += value;
  }
  return text + '}';
}

}  // namespace HEED_NAMESPACE::view
