// SPDX-License-Identifier: Apache-2.0
// Reading and writing the dict that begins an .npy file.
#include "files/npy_header.hpp"

#include <array>
#include <optional>

#include "files/header_cursor.hpp"
#include "files/json_string.hpp"

namespace heed::files {
namespace {

struct Descr {
  const char* text;
  Element element;
};

// The first of an element is what is written.
constexpr std::array<Descr, 17> descrs{{
    {"|b1", Element::boolean},
    {"|u1", Element::u8},
    {"|i1", Element::i8},
    {"<u2", Element::u16},
    {"<i2", Element::i16},
    {"<f2", Element::f16},
    {"<V2", Element::bf16},
    {"<u4", Element::u32},
    {"<i4", Element::i32},
    {"<f4", Element::f32},
    {"<u8", Element::u64},
    {"<i8", Element::i64},
    {"<f8", Element::f64},
    {"|V2", Element::bf16},
    {"<b1", Element::boolean},
    {"<u1", Element::u8},
    {"<i1", Element::i8},
}};

Element element_of(const std::string& file, const std::string& descr) {
  for (const Descr& known : descrs) {
    if (descr == known.text) return known.element;
  }
  const std::string subject = file + ": descr " + quote_briefly(descr);
  if (descr.starts_with('>')) throw Error(Error::dtype, subject + " is big-endian; heed reads little-endian");
  if (descr == "|O") {
    throw Error(Error::dtype, subject + " holds Python objects; heed reads numbers");
  }
  throw Error(Error::dtype, subject + " is not an element type heed reads");
}

// A Python string of plain characters. Escapes are refused: no descr or key needs one.
std::string read_python_string(HeaderCursor& cursor) {
  const bool is_double_quoted = cursor.accept('"');
  if (!is_double_quoted && !cursor.accept('\'')) throw cursor.expected("a string");
  const char quote = is_double_quoted ? '"' : '\'';
  std::string text;
  while (!cursor.rest().starts_with(quote)) {
    const std::string_view rest = cursor.rest();
    if (rest.empty()) throw cursor.error("a string does not end");
    if (rest.front() < ' ' || rest.front() > '~' || rest.front() == '\\') {
      throw cursor.expected("a plain character");
    }
    text += rest.front();
    cursor.advance(1);
  }
  cursor.advance(1);
  return text;
}

bool read_truth(HeaderCursor& cursor) {
  if (cursor.accept_word("True")) return true;
  if (cursor.accept_word("False")) return false;
  throw cursor.expected("True or False");
}

std::vector<std::int64_t> read_tuple(HeaderCursor& cursor) {
  std::vector<std::int64_t> integers;
  cursor.expect('(');
  while (!cursor.accept(')')) {
    integers.push_back(cursor.unsigned_integer());
    if (cursor.accept(',')) continue;
    // (3) is a number to Python; (3,) is the tuple.
    if (integers.size() == 1) throw cursor.expected("','");
    if (!cursor.accept(')')) throw cursor.expected("',' or ')'");
    break;
  }
  return integers;
}

std::string read_descr(HeaderCursor& cursor) {
  if (cursor.accept('[')) {
    throw Error(Error::dtype, cursor.subject() + ": descr is a list; heed reads no structured arrays");
  }
  return read_python_string(cursor);
}

}  // namespace

NpyHeader read_npy_header(const std::string& file, std::string_view text) {
  if (!text.ends_with('\n')) throw Error(Error::file, file + ": header does not end with a newline");
  HeaderCursor cursor(file, text.substr(0, text.size() - 1));
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
  cursor.expect('{');
  while (!cursor.accept('}')) {
    const std::string key = read_python_string(cursor);
    const std::string what = file + ": key " + quote_briefly(key);
    cursor.expect(':');
    if (key == "descr") {
      set_once(descr, read_descr(cursor), what);
    } else if (key == "fortran_order") {
      set_once(fortran_order, read_truth(cursor), what);
    } else if (key == "shape") {
      set_once(shape, read_tuple(cursor), what);
    } else {
      throw Error(Error::file, what + " is not descr, fortran_order or shape");
    }
    if (!cursor.another_before('}')) break;
  }
  cursor.expect_only_spaces();
  if (!descr) throw Error(Error::file, file + ": header has no descr");
  if (!fortran_order) throw Error(Error::file, file + ": header has no fortran_order");
  if (!shape) throw Error(Error::file, file + ": header has no shape");
  return {element_of(file, *descr), *fortran_order, std::move(*shape)};
}

std::string npy_dict(const Array& array) {
  std::string text = "{'descr': '";
  for (const Descr& known : descrs) {
    if (known.element == array.element) {
      text += known.text;
      break;
    }
  }
  text += "', 'fortran_order': False, 'shape': (";
  for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(array.shape[axis]);
  }
  return text + (array.shape.size() == 1 ? ",), }" : "), }");
}

}  // namespace heed::files
