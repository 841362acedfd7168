// SPDX-License-Identifier: Apache-2.0
// safetensors files that must be refused, each with its sentence.
#include "heed/files.hpp"
#include "hostile_file.hpp"

namespace heed::test {
namespace {

// One tensor named a.
std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

std::string file_of(const std::string& items, std::size_t data_bytes = 0) {
  return safetensors_bytes("{" + items + "}", data_bytes);
}

const std::string good = tensor("F32", "[2]", "[0,8]");

// A file that is refused leaves the caller's metadata alone.
void read_all(const char* path) {
  Metadata metadata{{"mine", "1"}};
  try {
    read_safetensors(path, &metadata);
  } catch (const Error&) {
    EXPECT_EQ(metadata, (Metadata{{"mine", "1"}}));
    throw;
  }
}

class hostile_safetensors : public ScratchFolder {};

TEST_F(hostile_safetensors, the_good_file_these_are_made_from_is_read) {
  put_file("x", file_of(good, 8));
  EXPECT_EQ(refusal([] { read_safetensors("x"); }), "nothing");
}

TEST_F(hostile_safetensors, lengths_beyond_the_file_are_refused) {
  const std::vector<HostileFile> cases{
      {"", "file: x: 0 bytes are too few for a safetensors file"},
      {"\x10\0\0", "file: x: 1 bytes are too few for a safetensors file"},
      {little_endian(0, 8), "file: x: header byte 0: expected '{', found the end"},
      {little_endian(~0ull, 8), "file: x: header of 18446744073709551615 bytes, more than 100000000"},
      {little_endian(100000001, 8), "file: x: header of 100000001 bytes, more than 100000000"},
      {little_endian(100000000, 8) + "{}", "file: x: header of 100000000 bytes, the file has 2"},
      {little_endian(3, 8) + "{}", "file: x: header of 3 bytes, the file has 2"},
  };
  EXPECT_EQ(count_failures(cases, read_all), 0);
}

TEST_F(hostile_safetensors, headers_that_are_not_the_format_s_json_are_refused) {
  const std::vector<HostileFile> cases{
      {safetensors_bytes(" {}"), "file: x: header byte 0: expected '{', found byte 0x20"},
      {safetensors_bytes("[]"), "file: x: header byte 0: expected '{', found '['"},
      {safetensors_bytes("{"), "file: x: header byte 1: expected a string, found the end"},
      {safetensors_bytes("{}\n"),
       "file: x: header byte 2: expected only spaces after the header, found byte 0x0a"},
      {safetensors_bytes("{}{}"), "file: x: header byte 2: expected only spaces after the header, found '{'"},
      {file_of(good + ",", 8), "file: x: header byte 54: expected a string, found '}'"},
      {file_of("a:1"), "file: x: header byte 1: expected a string, found 'a'"},
      {file_of("\"a\""), "file: x: header byte 4: expected ':', found '}'"},
      {file_of("\"a\":1"), "file: x: header byte 5: expected '{', found '1'"},
      {file_of("\"a\":[[[[[[[["), "file: x: header byte 5: expected '{', found '['"},
      {file_of("\"a"), "file: x: header byte 4: a string does not end"},
      {file_of("\"a\n\":1"), "file: x: header byte 3: a control character in a string"},
      {file_of("\"\\x41\":1"), "file: x: header byte 2: an escape that JSON does not have"},
      {safetensors_bytes("{\"\\"), "file: x: header byte 2: an escape that JSON does not have"},
      {file_of("\"\\u12g4\":1"), "file: x: header byte 2: \\u needs four hexadecimal digits"},
      {safetensors_bytes("{\"\\u12"), "file: x: header byte 2: \\u needs four hexadecimal digits"},
      {file_of("\"\\ud800\":1"), "file: x: header byte 2: half of a surrogate pair"},
      {file_of("\"\\ud800\\u0041\":1"), "file: x: header byte 2: half of a surrogate pair"},
      {file_of("\"\\udc00\\ud800\":1"), "file: x: header byte 2: half of a surrogate pair"},
      {file_of("\"\xff\":1"), "file: x: header byte 2: a string is not UTF-8"},
      {file_of("\"\xc0\x80\":1"), "file: x: header byte 2: a string is not UTF-8"},
      {file_of("\"\xe0\x9f\x80\":1"), "file: x: header byte 2: a string is not UTF-8"},
      {file_of("\"\xed\xa0\x80\":1"), "file: x: header byte 2: a string is not UTF-8"},
      {file_of("\"\xf4\x90\x80\x80\":1"), "file: x: header byte 2: a string is not UTF-8"},
      {file_of("\"\xe2\x82\":1"), "file: x: header byte 2: a string is not UTF-8"},
      {safetensors_bytes("{\"\xe2\x82"), "file: x: header byte 2: a string is not UTF-8"},
  };
  EXPECT_EQ(count_failures(cases, read_all), 0);
}

TEST_F(hostile_safetensors, tensors_that_are_not_described_once_and_fully_are_refused) {
  const std::vector<HostileFile> cases{
      {file_of("\"a\":{}"), "file: x: tensor \"a\" has no dtype"},
      {file_of("\"a\":{\"dtype\":\"F32\"}"), "file: x: tensor \"a\" has no shape"},
      {file_of("\"a\":{\"dtype\":\"F32\",\"shape\":[]}"), "file: x: tensor \"a\" has no data_offsets"},
      {file_of("\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}"),
       "file: x: tensor \"a\": key \"dtype\" appears twice"},
      {file_of("\"a\":{\"shape\":[1],\"shape\":[1]}"), "file: x: tensor \"a\": key \"shape\" appears twice"},
      {file_of("\"a\":{\"data_offsets\":[0,8],\"data_offsets\":[0,8]}"),
       "file: x: tensor \"a\": key \"data_offsets\" appears twice"},
      {file_of("\"a\":{\"strides\":[1]}"),
       "file: x: tensor \"a\": key \"strides\" is not dtype, shape or data_offsets"},
      {file_of(good + "," + good, 8), "file: x: tensor \"a\" appears twice"},
      {file_of(good + ",\"\\u0061\":{}", 8), "file: x: tensor \"a\" appears twice"},
      {file_of("\"__metadata__\":{},\"__metadata__\":{}"), "file: x: key \"__metadata__\" appears twice"},
      {file_of("\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}"), "file: x: metadata key \"k\" appears twice"},
      {file_of("\"__metadata__\":{\"k\":1}"), "file: x: header byte 21: expected a string, found '1'"},
      {file_of("\"__metadata__\":{\"k\":{}}"), "file: x: header byte 21: expected a string, found '{'"},
      {file_of("\"__metadata__\":{\"k\"}"), "file: x: header byte 20: expected ':', found '}'"},
      {file_of("\"__metadata__\":{\"k\":\"\\ud800\"}"), "file: x: header byte 22: half of a surrogate pair"},
      {file_of("\"__metadata__\":{\"k\":\"v\"},\"a\":{}"), "file: x: tensor \"a\" has no dtype"},
      {file_of("\"__metadata__\":{\"k\":\"v\"}", 1), "file: x: data bytes 0 to 1 belong to no tensor"},
      {file_of("\"__metadata__\":null"), "file: x: header byte 16: expected '{', found 'n'"},
      {file_of(tensor("F8_E4M3", "[8]", "[0,8]"), 8),
       "dtype: x: tensor \"a\": dtype \"F8_E4M3\" is not one heed reads"},
      {file_of(tensor("f32", "[2]", "[0,8]"), 8),
       "dtype: x: tensor \"a\": dtype \"f32\" is not one heed reads"},
  };
  EXPECT_EQ(count_failures(cases, read_all), 0);
}

TEST_F(hostile_safetensors, numbers_that_do_not_agree_are_refused) {
  const std::vector<HostileFile> cases{
      {file_of(tensor("F32", "[-2]", "[0,8]"), 8),
       "file: x: header byte 29: expected an unsigned integer, found '-'"},
      {file_of(tensor("F32", "[2.0]", "[0,8]"), 8),
       "file: x: header byte 30: expected ',' or ']', found '.'"},
      {file_of(tensor("F32", "[2e1]", "[0,8]"), 8),
       "file: x: header byte 30: expected ',' or ']', found 'e'"},
      {file_of(tensor("F32", "[02]", "[0,8]"), 8), "file: x: header byte 29: a number begins with 0"},
      {file_of(tensor("F32", "[2,]", "[0,8]"), 8),
       "file: x: header byte 31: expected an unsigned integer, found ']'"},
      {file_of(tensor("F32", "2", "[0,8]"), 8), "file: x: header byte 28: expected '[', found '2'"},
      {file_of(tensor("F32", "[9223372036854775808]", "[0,8]"), 8),
       "file: x: header byte 29: a number exceeds 9223372036854775807"},
      {file_of(tensor("F32", "[2]", "[0,18446744073709551616]"), 8),
       "file: x: header byte 50: a number exceeds 9223372036854775807"},
      {file_of(tensor("F32", "[4294967296,4294967296]", "[0,0]")),
       "shape: x: tensor \"a\": f32 (4294967296, 4294967296) is larger than any memory"},
      {file_of(tensor("F32", "[0,4294967296,4294967296]", "[0,0]")),
       "shape: x: tensor \"a\": f32 (0, 4294967296, 4294967296) is larger than any memory"},
      {file_of(tensor("F64", "[1,2,3,4,5,6,7,8,9,9223372036854775807]", "[0,0]")),
       "shape: x: tensor \"a\": f64 (1, 2, 3, 4, 5, 6, 7, 8, ...) is larger than any memory"},
      {file_of(tensor("F32", "[2]", "[0]"), 8), "file: x: tensor \"a\": data_offsets has 1 numbers, not 2"},
      {file_of(tensor("F32", "[2]", "[0,8,8]"), 8),
       "file: x: tensor \"a\": data_offsets has 3 numbers, not 2"},
      {file_of(tensor("F32", "[2]", "[8,0]"), 8),
       "file: x: tensor \"a\" ends at byte 0, before its start at 8"},
      {file_of(tensor("F32", "[2]", "[0,8]"), 7), "file: x: tensor \"a\" ends at byte 8 of 7"},
      {file_of(tensor("F32", "[2]", "[9223372036854775799,9223372036854775807]"), 8),
       "file: x: tensor \"a\" ends at byte 9223372036854775807 of 8"},
      {file_of(tensor("F32", "[2]", "[0,7]"), 7),
       "file: x: tensor \"a\": f32 (2) needs 8 bytes, data_offsets give 7"},
      {file_of(tensor("F32", "[]", "[0,8]"), 8),
       "file: x: tensor \"a\": f32 () needs 4 bytes, data_offsets give 8"},
  };
  EXPECT_EQ(count_failures(cases, read_all), 0);
}

TEST_F(hostile_safetensors, holes_and_overlaps_are_refused) {
  const std::string b = "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":";
  const std::string empty_b = "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":";
  const std::vector<HostileFile> cases{
      {file_of(good, 9), "file: x: data bytes 8 to 9 belong to no tensor"},
      {file_of("", 1), "file: x: data bytes 0 to 1 belong to no tensor"},
      {file_of(tensor("F32", "[2]", "[4,12]"), 12), "file: x: data bytes 0 to 4 belong to no tensor"},
      {file_of(good + "," + b + "[9,13]}", 13), "file: x: data bytes 8 to 9 belong to no tensor"},
      {file_of(good + "," + b + "[7,11]}", 11),
       "file: x: tensor \"b\" starts at byte 7, inside tensor \"a\", which ends at 8"},
      {file_of(good + "," + b + "[0,4]}", 8),
       "file: x: tensor \"a\" starts at byte 0, inside tensor \"b\", which ends at 4"},
      {file_of(good + "," + empty_b + "[4,4]}", 8),
       "file: x: tensor \"b\" starts at byte 4, inside tensor \"a\", which ends at 8"},
      {file_of(tensor("BOOL", "[3]", "[0,3]")) + std::string("\0\1\2", 3),
       "value: x: tensor \"a\": boolean 2 is stored as 2, not 0 or 1"},
  };
  EXPECT_EQ(count_failures(cases, read_all), 0);
}

TEST_F(hostile_safetensors, names_in_sentences_are_escaped_and_cut_short) {
  const std::vector<HostileFile> cases{
      {file_of("\"\\u001b[2J\\n\":{}"), "file: x: tensor \"\\u001b[2J\\n\" has no dtype"},
  };
  EXPECT_EQ(count_failures(cases, read_all), 0);
  put_file("x", file_of("\"" + std::string(79, 'n') + "\xe2\x82\xac" + std::string(1000, 'n') + "\":{}"));
  EXPECT_EQ(refusal([] { read_safetensors("x"); }),
            "file: x: tensor \"" + std::string(79, 'n') + "\"... has no dtype");
}

TEST_F(hostile_safetensors, what_cannot_be_read_or_written_is_refused) {
  EXPECT_EQ(refusal([] { read_safetensors("missing"); }),
            "file: missing: cannot be opened: No such file or directory");
  EXPECT_EQ(refusal([] { read_safetensors("."); }), "file: .: is not a regular file");
  EXPECT_EQ(refusal([] { read_safetensors("/dev/zero"); }), "file: /dev/zero: is not a regular file");
  const Array one = Array::from_floats({1}, {1});
  EXPECT_EQ(refusal([&] { write_safetensors("x", {{"__metadata__", one}}); }),
            "file: x: tensor \"__metadata__\": the format reserves this name");
  EXPECT_EQ(refusal([&] { write_safetensors("x", {{"\xff", one}}); }),
            "file: x: tensor \"\\xff\": its name is not UTF-8");
  EXPECT_EQ(refusal([&] { write_safetensors("x", {{"a", one}}, {{"\xff", "v"}}); }),
            "file: x: metadata key \"\\xff\" is not UTF-8");
  EXPECT_EQ(refusal([&] { write_safetensors("x", {{"a", one}}, {{"k", "\xed\xa0\x80"}}); }),
            "file: x: metadata key \"k\": its value is not UTF-8");
  EXPECT_EQ(refusal([&] { write_safetensors("x", {{"a", {Element::f32, {2}, {}}}}); }),
            "shape: x: tensor \"a\": f32 (2) needs 8 bytes, data has 0");
  EXPECT_TRUE(names_in(".").empty());
}

}  // namespace
}  // namespace heed::test
