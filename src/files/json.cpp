// SPDX-License-Identifier: Apache-2.0
// Decoding and encoding JSON strings.
#include "files/json.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <set>
#include <system_error>

#include "files/file_kind.hpp"
#include "files/input_file.hpp"

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

namespace {

constexpr const char* place = "byte ";

std::size_t digits(std::string_view text, std::size_t from) {
  std::size_t end = from;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end - from;
}

// How many characters at the start of `text` are a number: -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
std::size_t number_length(std::string_view text) {
  std::size_t at = text.starts_with('-') ? 1 : 0;
  const std::size_t whole = digits(text, at);
  if (whole == 0 || (whole > 1 && text[at] == '0')) return 0;
  at += whole;
  if (at < text.size() && text[at] == '.') {
    const std::size_t fraction = digits(text, at + 1);
    if (fraction == 0) return 0;
    at += 1 + fraction;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    const bool has_sign = at + 1 < text.size() && (text[at + 1] == '+' || text[at + 1] == '-');
    const std::size_t exponent = digits(text, at + 1 + (has_sign ? 1 : 0));
    if (exponent == 0) return 0;
    at += 1 + (has_sign ? 1 : 0) + exponent;
  }
  return at;
}

double read_number(HeaderCursor& cursor) {
  const std::string_view text = cursor.rest();
  const std::size_t length = number_length(text);
  if (length == 0) throw cursor.expected("a value");
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + length, number);
  if (read.ec != std::errc()) throw cursor.error("a number is beyond those of 64 bits");
  cursor.advance(length);
  return number;
}

void check_depth(const HeaderCursor& cursor, int depth) {
  if (depth == deepest_json)
    throw cursor.error("a value nested more than " + std::to_string(deepest_json) + " deep");
}

// Calls item() for every item up to `close`, past the bracket that opens them.
template <class Item>
void read_items(HeaderCursor& cursor, char close, const Item& item) {
  if (cursor.accept(close)) return;
  do {
    item();
  } while (cursor.another_before(close));
}

std::string read_key(HeaderCursor& cursor) {
  std::string key = read_json_string(cursor);
  cursor.expect(':');
  return key;
}

Json::Object read_object(HeaderCursor& cursor, int depth) {
  Json::Object object;
  std::set<std::string> seen;
  read_items(cursor, '}', [&] {
    std::string key = read_key(cursor);
    if (!seen.insert(key).second) throw cursor.error("key " + quote_briefly(key) + " appears twice");
    object.keys.push_back(std::move(key));
    object.values.push_back(read_json(cursor, depth + 1));
  });
  return object;
}

}  // namespace

const Json* Json::find(std::string_view key) const {
  const auto* object = as<Object>();
  if (!object) return nullptr;
  const auto found = std::ranges::find(object->keys, key);
  if (found == object->keys.end()) return nullptr;
  return &object->values[static_cast<std::size_t>(found - object->keys.begin())];
}

std::string describe(const Json& json) {
  if (const auto* truth = json.as<bool>()) return *truth ? "true" : "false";
  if (const auto* text = json.as<std::string>()) return quote_briefly(*text);
  if (const auto* number = json.as<double>()) {
    char digits[32];
    return {digits, std::to_chars(digits, digits + sizeof digits, *number).ptr};
  }
  return json.is_null() ? "null" : json.as<Json::List>() ? "a list" : "an object";
}

Json read_json(HeaderCursor& cursor, int depth) {
  check_depth(cursor, depth);
  if (cursor.accept('{')) return {read_object(cursor, depth)};
  if (cursor.accept('[')) {
    Json::List list;
    read_items(cursor, ']', [&] { list.push_back(read_json(cursor, depth + 1)); });
    return {std::move(list)};
  }
  if (cursor.rest().starts_with('"')) return {read_json_string(cursor)};
  if (cursor.accept_word("null")) return {};
  if (cursor.accept_word("true")) return {true};
  if (cursor.accept_word("false")) return {false};
  return {read_number(cursor)};
}

void skip_json(HeaderCursor& cursor, int depth) {
  check_depth(cursor, depth);
  if (cursor.accept('{')) {
    read_items(cursor, '}', [&] {
      read_key(cursor);
      skip_json(cursor, depth + 1);
    });
  } else if (cursor.accept('[')) {
    read_items(cursor, ']', [&] { skip_json(cursor, depth + 1); });
  } else {
    read_json(cursor, depth);  // neither list nor object: nothing worth avoiding
  }
}

std::string read_text(const std::filesystem::path& path, std::int64_t longest) {
  const InputFile file(path);
  if (file.size() > longest)
    throw not_a("JSON", file, std::to_string(file.size()) + " bytes, more than " + std::to_string(longest));
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, text.data(), text.size());
  if (text.find_first_not_of(" \t\r\n") == text.npos || text[text.find_first_not_of(" \t\r\n")] != '{')
    throw not_a("JSON", file, "does not begin with '{', as an object of JSON does");
  return text;
}

Json read_json_file(const std::filesystem::path& path, std::int64_t longest) {
  const std::string name = path.string(), text = read_text(path, longest);
  HeaderCursor cursor(name, text, place);
  Json json = read_json(cursor);
  cursor.expect_end();
  return json;
}

}  // namespace heed::files
