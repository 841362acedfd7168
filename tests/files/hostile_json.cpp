// SPDX-License-Identifier: Apache-2.0
// Files of JSON: what is read, what is refused with which sentence, and damaged ones.
#include <random>

#include "allocation_meter.hpp"
#include "files/json.hpp"
#include "hostile_file.hpp"

namespace heed::test {
namespace {

using files::Json;

class hostile_json : public ScratchFolder {};

Json read(const std::filesystem::path& path) { return files::read_json_file(path, 100000); }

TEST_F(hostile_json, every_kind_of_value_is_read) {
  put_file(
      "x",
      R"( {"a": null, "b": true, "c": [false, -1.5e3, 0, 1E+2, 12345678901234567890], "d": {"e": "\u00e9\n"},
                    "": {}, "f": []}
)");
  const Json json = read("x");
  EXPECT_TRUE(json.find("a")->is_null());
  EXPECT_TRUE(*json.find("b")->as<bool>());
  const auto& list = *json.find("c")->as<Json::List>();
  ASSERT_EQ(list.size(), 5u);
  EXPECT_FALSE(*list[0].as<bool>());
  EXPECT_EQ(*list[1].as<double>(), -1500);
  EXPECT_EQ(*list[2].as<double>(), 0);
  EXPECT_EQ(*list[3].as<double>(), 100);
  EXPECT_EQ(*list[4].as<double>(), 12345678901234567890.0);
  EXPECT_EQ(*json.find("d")->find("e")->as<std::string>(), "\xc3\xa9\n");
  EXPECT_TRUE(json.find("")->as<Json::Object>()->keys.empty());
  EXPECT_EQ(json.find("g"), nullptr);
  EXPECT_EQ(list[0].find("g"), nullptr);
}

TEST_F(hostile_json, what_breaks_the_grammar_is_refused) {
  const std::vector<HostileFile> cases{
      {"", "file: x: does not begin with '{', as an object of JSON does"},
      {" \n", "file: x: does not begin with '{', as an object of JSON does"},
      {"hello", "file: x: does not begin with '{', as an object of JSON does"},
      {"\x93NUMPY\1", "file: x: is an .npy file, not JSON"},
      {"{", "file: x: byte 1: expected a string, found the end"},
      {"{}{}", "file: x: byte 2: expected the end, found '{'"},
      {"{\"a\" 1}", "file: x: byte 5: expected ':', found '1'"},
      {"{\"a\": }", "file: x: byte 6: expected a value, found '}'"},
      {"{\"a\": 1,}", "file: x: byte 8: expected a string, found '}'"},
      {"{a: 1}", "file: x: byte 1: expected a string, found 'a'"},
      {"{'a': 1}", "file: x: byte 1: expected a string, found '''"},
      {"{\"a\": [1, 2}", "file: x: byte 11: expected ',' or ']', found '}'"},
      {"{\"a\": nul}", "file: x: byte 6: expected a value, found 'n'"},
      {"{\"a\": NaN}", "file: x: byte 6: expected a value, found 'N'"},
      {"{\"a\": Infinity}", "file: x: byte 6: expected a value, found 'I'"},
      {"{\"a\": trueish}", "file: x: byte 10: expected ',' or '}', found 'i'"},
      {"{\"a\": 01}", "file: x: byte 6: expected a value, found '0'"},
      {"{\"a\": 1.}", "file: x: byte 6: expected a value, found '1'"},
      {"{\"a\": .5}", "file: x: byte 6: expected a value, found '.'"},
      {"{\"a\": +1}", "file: x: byte 6: expected a value, found '+'"},
      {"{\"a\": 1e}", "file: x: byte 6: expected a value, found '1'"},
      {"{\"a\": 0x10}", "file: x: byte 7: expected ',' or '}', found 'x'"},
      {"{\"a\": 1e999}", "file: x: byte 6: a number is beyond those of 64 bits"},
      {"{\"a\": 1, \"a\": 2}", "file: x: byte 13: key \"a\" appears twice"},
      {"{\"b\": {\"a\": 1, \"a\": 2}}", "file: x: byte 19: key \"a\" appears twice"},
      {"{\"a\": \"\xff\"}", "file: x: byte 7: a string is not UTF-8"},
      {"{\"a\": 1 /* one */}", "file: x: byte 8: expected ',' or '}', found '/'"},
  };
  EXPECT_EQ(count_failures(cases, read), 0);
}

TEST_F(hostile_json, depth_and_size_are_bounded) {
  for (const int depth : {31, 32, 33, 40000}) {
    const auto half = static_cast<std::size_t>(depth - 1);
    put_file("x", "{\"a\":" + std::string(half, '[') + std::string(half, ']') + "}");
    const std::string found = refusal([] { read("x"); });
    EXPECT_EQ(found, depth <= 32 ? "nothing" : "file: x: byte 36: a value nested more than 32 deep") << depth;
  }
  put_file("x", "{\"a\": \"" + std::string(100000, 'x') + "\"}");
  EXPECT_EQ(refusal([] { read("x"); }), "file: x: 100009 bytes, more than 100000");
}

// Values cost more memory than their text, within a bound.
TEST_F(hostile_json, memory_is_within_a_multiple_of_the_text) {
  for (const char* item : {"0,", "[],", "\"\",", "{},", "null,"}) {
    std::string text = "{\"a\":[";
    while (text.size() < 90000) text += item;
    text.back() = ']';
    text += '}';
    put_file("x", text);
    const AllocationMeter meter;
    read("x");
    EXPECT_LT(meter.peak(), 100 * text.size()) << item;
  }
}

TEST_F(hostile_json, damaged_files_are_read_or_refused) {
  const std::string valid =
      R"({"model_type": "llama", "rope_parameters": {"factor": 8.0, "list": [1, 2.5e-3, null, true]}, "n": -12})";
  const std::string likely = "0123456789[]{},:\"\\ .eE+-truefalsn\n\xff";
  std::mt19937_64 random(1);
  int accepted = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string bytes = valid;
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % bytes.size();
      const char byte = random() % 3 ? likely[random() % likely.size()] : static_cast<char>(random() >> 56);
      if (random() % 3 == 0)
        bytes[at] = byte;
      else if (random() % 2)
        bytes.insert(at, 1, byte);
      else
        bytes.erase(at, 1 + random() % 4);
      if (bytes.empty()) bytes = "{";
    }
    put_file("x", bytes);
    const std::string found = refusal([] { read("x"); });
    accepted += found == "nothing";
    EXPECT_TRUE(found == "nothing" || found.starts_with("file: x: ")) << found;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 3000);
}

}  // namespace
}  // namespace heed::test
