// SPDX-License-Identifier: Apache-2.0
// Decoding and encoding JSON strings.
#include "files/json_string.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace heed::files {
namespace {

std::uint32_t byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

// Bytes of the well-formed UTF-8 character at the start of `text`; 0 if there is none. The bounds on the
// second byte are those of the Unicode standard, table 3-7: no overlong forms, no surrogates, nothing beyond
// U+10FFFF.
std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const std::uint32_t first = byte_at(text, 0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (text.size() < length) return 0;
  const std::uint32_t lowest = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const std::uint32_t highest = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte_at(text, 1) < lowest || byte_at(text, 1) > highest) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte_at(text, i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

void append_utf8(std::string& text, std::uint32_t code_point) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xc0 | code_point >> 6);
    put(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    put(0xe0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  } else {
    put(0xf0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3f));
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  }
}

// "\uXXXX" at the start of `text`.
std::optional<std::uint32_t> code_unit(std::string_view text) {
  if (text.size() < 6 || !text.starts_with("\\u")) return std::nullopt;
  std::uint32_t unit = 0;
  for (const char c : text.substr(2, 4)) {
    const char lower = static_cast<char>(c | 0x20);
    if (c >= '0' && c <= '9') {
      unit = unit << 4 | static_cast<std::uint32_t>(c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      unit = unit << 4 | static_cast<std::uint32_t>(lower - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return unit;
}

void read_unicode_escape(HeaderCursor& cursor, std::string& into) {
  const auto unit = code_unit(cursor.rest());
  if (!unit) throw cursor.error("\\u needs four hexadecimal digits");
  if (*unit < 0xd800 || *unit > 0xdfff) {
    append_utf8(into, *unit);
    cursor.advance(6);
    return;
  }
  const auto low = code_unit(cursor.rest().substr(6));
  if (*unit > 0xdbff || !low || *low < 0xdc00 || *low > 0xdfff)
    throw cursor.error("half of a surrogate pair");
  append_utf8(into, 0x10000 + ((*unit - 0xd800) << 10) + (*low - 0xdc00));
  cursor.advance(12);
}

constexpr std::string_view escaped = "\"\\/bfnrt";
constexpr std::string_view meant = "\"\\/\b\f\n\r\t";

void read_escape(HeaderCursor& cursor, std::string& into) {
  const std::string_view text = cursor.rest();
  if (text.starts_with("\\u")) return read_unicode_escape(cursor, into);
  const std::size_t which = text.size() < 2 ? escaped.npos : escaped.find(text[1]);
  if (which == escaped.npos) throw cursor.error("an escape that JSON does not have");
  into += meant[which];
  cursor.advance(2);
}

void append_hexadecimal(std::string& text, std::uint32_t byte) {
  constexpr char digits[] = "0123456789abcdef";
  text += digits[byte >> 4];
  text += digits[byte & 15];
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string read_json_string(HeaderCursor& cursor) {
  if (!cursor.accept('"')) throw cursor.expected("a string");
  std::string text;
  text.reserve(std::min(cursor.rest().find('"'), cursor.rest().size()));  // exact unless a quote is escaped
  for (;;) {
    const std::string_view rest = cursor.rest();
    if (rest.empty()) throw cursor.error("a string does not end");
    if (rest.front() == '"') break;
    if (rest.front() == '\\') {
      read_escape(cursor, text);
      continue;
    }
    if (byte_at(rest, 0) < 0x20) throw cursor.error("a control character in a string");
    const std::size_t length = utf8_length(rest);
    if (length == 0) throw cursor.error("a string is not UTF-8");
    text += rest.substr(0, length);
    cursor.advance(length);
  }
  cursor.advance(1);
  return text;
}

std::string quote_json(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::size_t which = text.front() == '/' ? meant.npos : meant.find(text.front());
    if (length == 0) {
      quoted += "\\x";
      append_hexadecimal(quoted, byte_at(text, 0));
    } else if (which != meant.npos) {
      quoted += '\\';
      quoted += escaped[which];
    } else if (byte_at(text, 0) < 0x20) {
      quoted += "\\u00";
      append_hexadecimal(quoted, byte_at(text, 0));
    } else {
      quoted += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return quoted + '"';
}

std::string quote_briefly(std::string_view text) {
  constexpr std::size_t shown = 80;
  if (text.size() <= shown) return quote_json(text);
  std::size_t end = shown;
  while (end > shown - 3 && (byte_at(text, end) & 0xc0) == 0x80) --end;  // not inside a character
  return quote_json(text.substr(0, end)) + "...";
}

}  // namespace heed::files
