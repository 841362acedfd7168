// SPDX-License-Identifier: Apache-2.0
// Strings as JSON writes them (RFC 8259), and UTF-8.
#pragma once
#include <string>
#include <string_view>

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

}  // namespace heed::files
