// SPDX-License-Identifier: Apache-2.0
// .npy files that must be refused, each with its sentence.
#include "heed/files.hpp"
#include "hostile_file.hpp"

namespace heed::test {
namespace {

std::string file_of(const std::string& descr, const std::string& order, const std::string& shape,
                    std::size_t data_bytes) {
  return npy_bytes("{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n",
                   data_bytes);
}

std::string of_descr(const std::string& descr) { return file_of(descr, "False", "(2,)", 8); }
std::string of_shape(const std::string& shape, std::size_t data_bytes = 8) {
  return file_of("'<f4'", "False", shape, data_bytes);
}

class hostile_npy : public ScratchFolder {};

TEST_F(hostile_npy, the_good_file_these_are_made_from_is_read) {
  put_file("x", of_shape("(2,)"));
  EXPECT_EQ(refusal([] { read_npy("x"); }), "nothing");
}

TEST_F(hostile_npy, what_does_not_begin_as_the_format_does_is_refused) {
  const std::string magic = "\x93NUMPY";
  const std::vector<HostileFile> cases{
      {"", "file: x: 0 bytes are too few for an .npy file"},
      {magic, "file: x: 6 bytes are too few for an .npy file"},
      {magic + std::string("\1\0\1", 3), "file: x: 9 bytes are too few for an .npy file"},
      {magic + std::string("\2\0\1\0\0", 5), "file: x: 11 bytes are too few for an .npy file"},
      {"PK\3\4 a zip file",
       "file: x: is a zip archive, as PyTorch's .pt and NumPy's .npz files are, not an .npy file"},
      {magic + std::string("\4\0\1\0\0\0", 6), "file: x: version 4.0 is not 1.0, 2.0 or 3.0"},
      {magic + std::string("\0\0\1\0\0\0", 6), "file: x: version 0.0 is not 1.0, 2.0 or 3.0"},
      {magic + std::string("\1\1\1\0\0\0", 6), "file: x: version 1.1 is not 1.0, 2.0 or 3.0"},
      {magic + std::string("\1\0\xff\xff{}", 6), "file: x: header of 65535 bytes, the file has 2"},
      {magic + std::string("\3\0\xff\xff\xff\xff", 6),
       "file: x: header of 4294967295 bytes, more than 65535"},
  };
  EXPECT_EQ(count_failures(cases, read_npy), 0);
}

TEST_F(hostile_npy, headers_that_are_not_the_dict_are_refused) {
  const std::vector<HostileFile> cases{
      {npy_bytes(""), "file: x: header does not end with a newline"},
      {npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", 4),
       "file: x: header does not end with a newline"},
      {npy_bytes("[]\n"), "file: x: header byte 0: expected '{', found '['"},
      {npy_bytes("{\n"), "file: x: header byte 1: expected a string, found the end"},
      {npy_bytes("{'descr\n"), "file: x: header byte 7: a string does not end"},
      {npy_bytes("{'de\\x73cr': 1}\n"), "file: x: header byte 4: expected a plain character, found '\\'"},
      {npy_bytes("{'d\xc3\xa9': 1}\n"),
       "file: x: header byte 3: expected a plain character, found byte 0xc3"},
      {npy_bytes("{'descr' '<f4'}\n"), "file: x: header byte 9: expected ':', found '''"},
      {npy_bytes("{'descr': '<f4' 'shape': ()}\n"),
       "file: x: header byte 16: expected ',' or '}', found '''"},
      {npy_bytes("{}\n"), "file: x: header has no descr"},
      {npy_bytes("{'descr': '<f4'}\n"), "file: x: header has no fortran_order"},
      {npy_bytes("{'descr': '<f4', 'fortran_order': True}\n"), "file: x: header has no shape"},
      {npy_bytes("{'descr': '<f4', 'descr': '<f4'}\n"), "file: x: key \"descr\" appears twice"},
      {npy_bytes("{'fortran_order': True, 'fortran_order': True}\n"),
       "file: x: key \"fortran_order\" appears twice"},
      {npy_bytes("{'shape': (), 'shape': ()}\n"), "file: x: key \"shape\" appears twice"},
      {npy_bytes("{'strides': ()}\n"), "file: x: key \"strides\" is not descr, fortran_order or shape"},
      {npy_bytes("{} x\n"), "file: x: header byte 3: expected only spaces after the header, found 'x'"},
      {npy_bytes("{}\n\n"), "file: x: header byte 2: expected only spaces after the header, found byte 0x0a"},
      {file_of("'<f4'", "0", "(2,)", 8), "file: x: header byte 34: expected True or False, found '0'"},
      {file_of("'<f4'", "Falsely", "(2,)", 8), "file: x: header byte 39: expected ',' or '}', found 'l'"},
  };
  EXPECT_EQ(count_failures(cases, read_npy), 0);
}

TEST_F(hostile_npy, element_types_that_are_not_read_are_refused) {
  const std::vector<HostileFile> cases{
      {of_descr("'>f4'"), "dtype: x: descr \">f4\" is big-endian; heed reads little-endian"},
      {of_descr("'|O'"), "dtype: x: descr \"|O\" holds Python objects; heed reads numbers"},
      {of_descr("'<c8'"), "dtype: x: descr \"<c8\" is not an element type heed reads"},
      {of_descr("'<U1'"), "dtype: x: descr \"<U1\" is not an element type heed reads"},
      {of_descr("'<f16'"), "dtype: x: descr \"<f16\" is not an element type heed reads"},
      {of_descr("'f4'"), "dtype: x: descr \"f4\" is not an element type heed reads"},
      {of_descr("''"), "dtype: x: descr \"\" is not an element type heed reads"},
      {of_descr("[('a', '<f4')]"), "dtype: x: descr is a list; heed reads no structured arrays"},
      {of_descr("4"), "file: x: header byte 10: expected a string, found '4'"},
  };
  EXPECT_EQ(count_failures(cases, read_npy), 0);
}

TEST_F(hostile_npy, shapes_that_do_not_agree_with_the_file_are_refused) {
  const std::vector<HostileFile> cases{
      {of_shape("(2,)", 7), "file: x: f32 (2) needs 8 bytes, the file has 7"},
      {of_shape("(2,)", 9), "file: x: f32 (2) needs 8 bytes, the file has 9"},
      {of_shape("()", 0), "file: x: f32 () needs 4 bytes, the file has 0"},
      {of_shape("(0, 5)", 4), "file: x: f32 (0, 5) needs 0 bytes, the file has 4"},
      {of_shape("(1099511627776,)"),
       "file: x: f32 (1099511627776) needs 4398046511104 bytes, the file has 8"},
      {of_shape("(4294967296, 4294967296)"),
       "shape: x: f32 (4294967296, 4294967296) is larger than any memory"},
      {of_shape("(9223372036854775808,)"), "file: x: header byte 51: a number exceeds 9223372036854775807"},
      {of_shape("(-2,)"), "file: x: header byte 51: expected an unsigned integer, found '-'"},
      {of_shape("(2)"), "file: x: header byte 52: expected ',', found ')'"},
      {of_shape("(2L,)"), "file: x: header byte 52: expected ',', found 'L'"},
      {of_shape("(1, 2"), "file: x: header byte 57: expected an unsigned integer, found '}'"},
      {of_shape("(,)"), "file: x: header byte 51: expected an unsigned integer, found ','"},
      {of_shape("[2]"), "file: x: header byte 50: expected '(', found '['"},
      {file_of("'|b1'", "False", "(3,)", 0) + std::string("\1\0\xff", 3),
       "value: x: boolean 2 is stored as 255, not 0 or 1"},
  };
  EXPECT_EQ(count_failures(cases, read_npy), 0);
}

TEST_F(hostile_npy, what_cannot_be_written_is_refused) {
  EXPECT_EQ(refusal([] { write_npy("x", {Element::i16, {3}, std::vector<std::byte>(5)}); }),
            "shape: x: i16 (3) needs 6 bytes, data has 5");
  const std::vector<std::int64_t> very_many_axes(30000, 1);
  EXPECT_EQ(refusal([&] { write_npy("x", {Element::u8, very_many_axes, std::vector<std::byte>(1)}); }),
            "file: x: needs a header of 90102 bytes, more than 65535");
  EXPECT_TRUE(names_in(".").empty());
}

}  // namespace
}  // namespace heed::test
