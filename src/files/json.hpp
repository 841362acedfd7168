// SPDX-License-Identifier: Apache-2.0
// JSON (RFC 8259) from outside, read strictly, and its strings in UTF-8.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "files/header_cursor.hpp"

namespace heed::files {

bool is_utf8(std::string_view);

// Reads a string at the cursor and returns it decoded. Refuses bad escapes, lone surrogates, raw control
// characters and anything that is not UTF-8.
std::string read_json_string(HeaderCursor&);

// The string in quotes and escaped. Bytes that are not UTF-8 come out as \xNN, which is for people, not for
// JSON.
std::string quote_json(std::string_view);

// The same for a sentence: a name of a million bytes is cut short.
std::string quote_briefly(std::string_view);

// A file of JSON (RFC 8259) from outside, read strictly: no value is nested deeper than `deepest`, no key
// stands twice, every number fits a double.

constexpr int deepest_json = 32;

struct Json {
  using List = std::vector<Json>;
  struct Object {  // in the order of the file, each value at the place of its key
    std::vector<std::string> keys;
    List values;
  };
  std::variant<std::nullptr_t, bool, double, std::string, List, Object> value{};

  bool is_null() const { return value.index() == 0; }
  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  const Json* find(std::string_view key) const;  // nullptr where there is none, or this is no object
};

// In a sentence: null, true, 3.5, "llama", a list, an object.
std::string describe(const Json&);

Json read_json(HeaderCursor&, int depth = 0);
void skip_json(HeaderCursor&, int depth = 0);  // checks and keeps nothing

// The text of a file that is at most this long.
std::string read_text(const std::filesystem::path&, std::int64_t longest);

// A file that holds one object. Its values take some sixty times the bytes of its text at the worst.
Json read_json_file(const std::filesystem::path&, std::int64_t longest);

}  // namespace heed::files
