// SPDX-License-Identifier: Apache-2.0
#include "files/json.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <system_error>

#include "files/file_kind.hpp"
#include "files/input_file.hpp"
#include "files/json_string.hpp"

namespace heed::files {
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
