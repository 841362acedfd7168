// SPDX-License-Identifier: Apache-2.0
// A place in the text of a file's header, or of a whole file of JSON. Whatever is not exactly as expected
// throws, with the byte where it stands.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "heed/error.hpp"

namespace heed::files {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

class HeaderCursor {
 public:
  // `subject` begins every sentence, and `place` is what bytes are counted of; none is copied.
  HeaderCursor(const std::string& subject, std::string_view text, const char* place = "header byte ")
      : subject_(subject), text_(text), place_(place) {}

  const std::string& subject() const { return subject_; }
  std::string_view rest() const { return text_.substr(position_); }
  void advance(std::size_t count) { position_ += count; }

  // "w.npy: header byte 7: " and what is wrong there.
  Error error(const std::string& what) const;
  // "expected `what`, found ':'"
  Error expected(const std::string& what) const;

  // These skip spaces, tabs and line ends first.
  bool accept(char);  // true, and past it, if that is the next character
  bool accept_word(std::string_view);
  void expect(char);
  // After an item of a list: true past a ',', false past `close`.
  bool another_before(char close);
  std::int64_t unsigned_integer();  // decimal, no sign, no leading zero, within std::int64_t

  void expect_only_spaces();  // to the end of the text
  void expect_end();          // or line ends and tabs

 private:
  void skip_blanks();

  const std::string& subject_;
  std::string_view text_;
  const char* place_;
  std::size_t position_ = 0;
};

// For a key that may be given once: `what` is how a sentence names it.
template <class Value>
void set_once(std::optional<Value>& slot, Value value, const std::string& what) {
  if (slot) throw Error(Error::file, what + " appears twice");
  slot = std::move(value);
}

}  // namespace heed::files
