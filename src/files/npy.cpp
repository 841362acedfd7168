// SPDX-License-Identifier: Apache-2.0
// .npy files: the Python dict that begins one, and the array behind it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/array_size.hpp"
#include "files/atomic_file.hpp"
#include "files/file_kind.hpp"
#include "files/header_cursor.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "heed/error.hpp"
#include "heed/files.hpp"

namespace heed::files {

struct NpyHeader {
  Element element = Element::f32;
  bool fortran_order = false;
  std::vector<std::int64_t> shape{};
};

// The dict, without the magic, version and length before it. bf16 has no name of its own in the format; NumPy
// saves it as two raw bytes, '<V2', and that is how it is written here; '<V2' and '|V2' are both read as
// bf16.
NpyHeader read_npy_header(const std::string& file, std::string_view text);
std::string npy_dict(const Array&);

// Reading and writing the dict that begins an .npy file.

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

// .npy files, versions 1 to 3: magic, version, length of the header, the header, and one array's bytes.

namespace HEED_NAMESPACE {
namespace {

using files::InputFile;
using files::NpyHeader;

constexpr std::string_view magic = "\x93NUMPY";
// What version 1 can hold. Versions 2 and 3 exist for structured arrays of very many fields, which are not
// read.
constexpr std::uint32_t longest_header = 65535;

struct Opened {
  NpyHeader header;
  std::int64_t data_bytes;  // what the file holds after the header
};

Opened read_header(InputFile& file) {
  std::array<char, magic.size() + 2> start{};  // and the version
  const auto too_short = [&] {
    return files::not_a("an .npy file", file,
                        std::to_string(file.size()) + " bytes are too few for an .npy file");
  };
  if (file.size() < static_cast<std::int64_t>(start.size())) throw too_short();
  file.read(start.data(), start.size());
  if (!std::string_view(start.data(), start.size()).starts_with(magic)) {
    throw files::not_a("an .npy file", file, "does not begin as an .npy file does");
  }
  const int major = static_cast<unsigned char>(start[6]), minor = static_cast<unsigned char>(start[7]);
  if (major < 1 || major > 3 || minor != 0) {
    throw Error(Error::file, file.name() + ": version " + std::to_string(major) + "." +
                                 std::to_string(minor) + " is not 1.0, 2.0 or 3.0");
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const auto after_length = file.size() - static_cast<std::int64_t>(start.size() + length_bytes);
  if (after_length < 0) throw too_short();
  std::uint32_t length = 0;  // little-endian, so two bytes fill it as well as four
  file.read(&length, length_bytes);
  const auto header_of = file.name() + ": header of " + std::to_string(length) + " bytes, ";
  if (length > longest_header) {
    throw Error(Error::file, header_of + "more than " + std::to_string(longest_header));
  }
  if (length > after_length) {
    throw Error(Error::file, header_of + "the file has " + std::to_string(after_length));
  }
  std::string text(length, '\0');
  file.read(text.data(), text.size());
  return {files::read_npy_header(file.name(), text), after_length - length};
}

// Visits the elements of an array in Fortran order (first axis fastest) and says where each lies in row-major
// order. Axes of extent 1 are left out, so a step costs at most 63 axes whatever a file's rank.
class FortranWalk {
 public:
  explicit FortranWalk(const std::vector<std::int64_t>& shape) {
    std::size_t stride = 1;
    for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent) {
      if (*extent != 1) axes_.push_back({static_cast<std::size_t>(*extent), stride, 0});
      stride *= static_cast<std::size_t>(*extent);
    }
    std::reverse(axes_.begin(), axes_.end());
  }

  std::size_t offset() const { return offset_; }

  void step() {
    for (Axis& axis : axes_) {
      offset_ += axis.stride;
      if (++axis.index < axis.extent) return;
      offset_ -= axis.stride * axis.extent;
      axis.index = 0;
    }
  }

 private:
  struct Axis {
    std::size_t extent, stride, index;
  };
  std::vector<Axis> axes_{};
  std::size_t offset_ = 0;
};

// Piece by piece, so that the file's bytes are never held twice.
void read_fortran(InputFile& file, Array& array) {
  constexpr std::size_t piece_bytes = std::size_t{1} << 20;  // a multiple of every element's size
  std::vector<std::byte> piece(std::min(piece_bytes, array.data.size()));
  const std::size_t width = bytes_of(array.element);
  FortranWalk walk(array.shape);
  for (std::size_t remaining = array.data.size(); remaining > 0; remaining -= piece.size()) {
    piece.resize(std::min(piece.size(), remaining));
    file.read(piece.data(), piece.size());
    for (std::size_t at = 0; at < piece.size(); at += width, walk.step()) {
      std::memcpy(array.data.data() + walk.offset() * width, piece.data() + at, width);
    }
  }
}

}  // namespace

Array read_npy(const std::filesystem::path& path) {
  InputFile file(path);
  try {
    Opened opened = read_header(file);
    Array array{opened.header.element, std::move(opened.header.shape), {}};
    const std::int64_t needed = files::byte_count(file.name(), array.element, array.shape);
    if (needed != opened.data_bytes) {
      throw Error(Error::file, file.name() + ": " + name_of(array.element) + " " +
                                   files::shape_text(array.shape) + " needs " + std::to_string(needed) +
                                   " bytes, the file has " + std::to_string(opened.data_bytes));
    }
    array.data.resize(static_cast<std::size_t>(needed));
    if (opened.header.fortran_order) {
      read_fortran(file, array);
    } else {
      file.read(array.data.data(), array.data.size());
    }
    files::check_contents(file.name(), array);
    return array;
  } catch (const std::bad_alloc&) {
    throw Error(Error::capacity,
                file.name() + ": no memory for a file of " + std::to_string(file.size()) + " bytes");
  }
}

void write_npy(const std::filesystem::path& path, const Array& array) {
  files::check_contents(path.string(), array);
  std::string header = files::npy_dict(array);
  const std::size_t before = magic.size() + 4;           // magic, version 1.0, length
  constexpr std::size_t alignment = 64;                  // of the data, as the format asks
  const std::size_t least = before + header.size() + 1;  // a newline ends it
  header.append((alignment - least % alignment) % alignment, ' ');
  header += '\n';
  if (header.size() > longest_header) {
    throw Error(Error::file, path.string() + ": needs a header of " + std::to_string(header.size()) +
                                 " bytes, more than " + std::to_string(longest_header));
  }
  std::string start(magic);
  start += {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  files::AtomicFile file(path);
  file.write(start.data(), start.size());
  file.write(header.data(), header.size());
  file.write(array.data.data(), array.data.size());
  file.commit();
}

}  // namespace HEED_NAMESPACE
