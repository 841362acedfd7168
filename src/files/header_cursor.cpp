// SPDX-License-Identifier: Apache-2.0
// The few tokens that header languages share.
#include "files/header_cursor.hpp"

#include <algorithm>
#include <limits>

namespace heed::files {
namespace {

std::string describe(std::string_view rest) {
  if (rest.empty()) return "the end";
  const char c = rest.front();
  if (c > ' ' && c <= '~') return std::string("'") + c + "'";
  constexpr char digits[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  return std::string("byte 0x") + digits[byte >> 4] + digits[byte & 15];
}

}  // namespace

Error HeaderCursor::error(const std::string& what) const {
  return Error(Error::file, subject_ + ": " + place_ + std::to_string(position_) + ": " + what);
}

Error HeaderCursor::expected(const std::string& what) const {
  return error("expected " + what + ", found " + describe(rest()));
}

void HeaderCursor::skip_blanks() {
  position_ = std::min(text_.find_first_not_of(" \t\r\n", position_), text_.size());
}

bool HeaderCursor::accept(char c) {
  skip_blanks();
  if (!rest().starts_with(c)) return false;
  advance(1);
  return true;
}

bool HeaderCursor::accept_word(std::string_view word) {
  skip_blanks();
  if (!rest().starts_with(word)) return false;
  advance(word.size());
  return true;
}

void HeaderCursor::expect(char c) {
  if (!accept(c)) throw expected(std::string("'") + c + "'");
}

bool HeaderCursor::another_before(char close) {
  if (accept(',')) return true;
  if (accept(close)) return false;
  throw expected(std::string("',' or '") + close + "'");
}

std::int64_t HeaderCursor::unsigned_integer() {
  skip_blanks();
  const std::string_view text = rest();
  if (text.empty() || !is_digit(text.front())) throw expected("an unsigned integer");
  if (text.size() > 1 && text[0] == '0' && is_digit(text[1])) throw error("a number begins with 0");
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::int64_t number = 0;
  std::size_t length = 0;
  for (; length < text.size() && is_digit(text[length]); ++length) {
    const int digit = text[length] - '0';
    if (number > (most - digit) / 10) throw error("a number exceeds " + std::to_string(most));
    number = number * 10 + digit;
  }
  advance(length);
  return number;
}

void HeaderCursor::expect_end() {
  skip_blanks();
  if (!rest().empty()) throw expected("the end");
}

void HeaderCursor::expect_only_spaces() {
  position_ = std::min(text_.find_first_not_of(' ', position_), text_.size());
  if (!rest().empty()) throw expected("only spaces after the header");
}

}  // namespace heed::files
