// SPDX-License-Identifier: Apache-2.0
// What is written is what is read, bit for bit, and the bytes between are the format's.
#include <algorithm>

#include "sample_arrays.hpp"
#include "scratch_folder.hpp"

namespace heed::test {
namespace {

class round_trips : public ScratchFolder {};

TEST_F(round_trips, every_element_and_rank_through_npy) {
  int failures = 0;
  for (const auto& [name, array] : one_of_every_kind(1)) {
    write_npy("a.npy", array);
    if (same(read_npy("a.npy"), array)) continue;
    ++failures;
    ADD_FAILURE() << "one_of_every_kind(1)[\"" << name << "\"]";
  }
  EXPECT_EQ(failures, 0);
}

TEST_F(round_trips, every_element_and_rank_through_one_safetensors_file) {
  const Arrays arrays = one_of_every_kind(2);
  write_safetensors("a.safetensors", arrays);
  const Arrays back = read_safetensors("a.safetensors");
  ASSERT_EQ(back.size(), arrays.size());
  int failures = 0;
  for (const auto& [name, array] : arrays) {
    if (back.contains(name) && same(back.at(name), array)) continue;
    ++failures;
    ADD_FAILURE() << "one_of_every_kind(2)[\"" << name << "\"]";
  }
  EXPECT_EQ(failures, 0);
}

TEST_F(round_trips, a_file_of_no_arrays) {
  write_safetensors("none.safetensors", {});
  EXPECT_EQ(file_bytes("none.safetensors"), safetensors_bytes("{}      "));
  EXPECT_TRUE(read_safetensors("none.safetensors").empty());
}

TEST_F(round_trips, names_of_any_characters) {
  Arrays arrays;
  for (const std::string& name :
       {std::string(), std::string("a\"b\\c/d"), std::string("\b\f\n\r\t\x01\x7f"),
        std::string("nul\0here", 8), std::string("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"),
        std::string(5000, 'x')}) {
    arrays[name] = random_array(Element::i16, {2}, name.size());
  }
  write_safetensors("names.safetensors", arrays);
  const Arrays back = read_safetensors("names.safetensors");
  ASSERT_EQ(back.size(), arrays.size());
  for (const auto& [name, array] : arrays) EXPECT_TRUE(back.contains(name) && same(back.at(name), array));
}

TEST_F(round_trips, escapes_mean_the_characters_they_stand_for) {
  put_file("e.safetensors", safetensors_bytes(R"({"\u0061\/\u00e9\u20AC\ud83d\ude00\"\\\b\f\n\r\t":)"
                                              R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                              1));
  EXPECT_TRUE(
      read_safetensors("e.safetensors").contains("a/\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"\\\b\f\n\r\t"));
}

TEST_F(round_trips, safetensors_bytes_are_fixed_and_aligned) {
  const Arrays arrays{{"a", random_array(Element::u8, {3}, 1)},
                      {"c", random_array(Element::f64, {1}, 2)},
                      {"b", random_array(Element::f32, {1, 1}, 3)},
                      {"d", random_array(Element::i64, {}, 4)}};
  write_safetensors("w.safetensors", arrays);
  std::string header = R"({"c":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                       R"("d":{"dtype":"I64","shape":[],"data_offsets":[8,16]},)"
                       R"("b":{"dtype":"F32","shape":[1,1],"data_offsets":[16,20]},)"
                       R"("a":{"dtype":"U8","shape":[3],"data_offsets":[20,23]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string expected = little_endian(header.size(), 8) + header;
  for (const char* name : {"c", "d", "b", "a"}) {
    const auto& data = arrays.at(name).data;
    expected.append(reinterpret_cast<const char*>(data.data()), data.size());
  }
  EXPECT_EQ(file_bytes("w.safetensors"), expected);
}

TEST_F(round_trips, npy_bytes_are_fixed_and_aligned) {
  const Array array = random_array(Element::f32, {2, 3}, 5);
  write_npy("a.npy", array);
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  header.resize(128 - 10 - 1, ' ');
  const std::string expected =
      npy_bytes(header + "\n") +
      std::string(reinterpret_cast<const char*>(array.data.data()), array.data.size());
  EXPECT_EQ(file_bytes("a.npy"), expected);
}

TEST_F(round_trips, metadata_comes_back_as_it_was_written) {
  const Metadata metadata{{"format", "pt"},
                          {"", ""},
                          {"\"\\/\b\f\n\r\t\x01\x7f", std::string("nul\0here", 8)},
                          {"\xc3\xa9\xe2\x82\xac", "\xf0\x9f\x98\x80" + std::string(5000, 'x')}};
  for (const Arrays& arrays : {Arrays{}, one_of_every_kind(6)}) {
    write_safetensors("m.safetensors", arrays, metadata);
    Metadata back{{"what was here", "is gone"}};
    EXPECT_EQ(read_safetensors("m.safetensors", &back).size(), arrays.size());
    EXPECT_EQ(back, metadata);
    write_safetensors("m.safetensors", arrays);
    read_safetensors("m.safetensors", &back);
    EXPECT_TRUE(back.empty());
  }
}

TEST_F(round_trips, metadata_comes_first_and_in_the_order_of_its_keys) {
  write_safetensors("m.safetensors", {{"a", random_array(Element::u8, {0}, 7)}}, {{"k", "2"}, {"a\n", "1"}});
  EXPECT_EQ(file_bytes("m.safetensors"),
            safetensors_bytes(R"({"__metadata__":{"a\n":"1","k":"2"},)"
                              R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"));
}

TEST_F(round_trips, metadata_and_white_space_may_lie_anywhere) {
  put_file("m.safetensors",
           safetensors_bytes(
               "{ \"__metadata__\" :\t{\"format\":\"pt\", \"k\":\"\\u0041\"} ,\r\n \"a\" : { \"shape\" : [ 1 "
               ", 2 ] , \"data_offsets\" : [ 0 , 2 ] , \"dtype\" : \"I8\" } }    ",
               2));
  Metadata metadata;
  const Arrays arrays = read_safetensors("m.safetensors", &metadata);
  EXPECT_EQ(metadata, (Metadata{{"format", "pt"}, {"k", "A"}}));
  ASSERT_EQ(arrays.size(), 1u);
  EXPECT_EQ(arrays.at("a").element, Element::i8);
  EXPECT_EQ(arrays.at("a").shape, (std::vector<std::int64_t>{1, 2}));
  put_file("e.safetensors", safetensors_bytes(R"({"__metadata__":{}})"));
  EXPECT_TRUE(read_safetensors("e.safetensors").empty());
}

TEST_F(round_trips, tensors_need_not_lie_in_the_order_of_the_header) {
  put_file("o.safetensors", safetensors_bytes(R"({"late":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
                                              R"("none":{"dtype":"F64","shape":[0],"data_offsets":[1,1]},)"
                                              R"("early":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})") +
                                "\x01\x02\x03");
  const Arrays arrays = read_safetensors("o.safetensors");
  EXPECT_EQ(arrays.at("early").to_integers(), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(arrays.at("late").to_integers(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(arrays.at("none").elements(), 0);
}

TEST_F(round_trips, npy_versions_2_and_3_and_other_spellings_of_the_header) {
  const std::string header = "{\"shape\":(2,),'fortran_order' : False\n,'descr':'|u1'}\n";
  for (const char version : {'\2', '\3'}) {
    put_file("v.npy", std::string("\x93NUMPY") + version + std::string(1, '\0') +
                          little_endian(header.size(), 4) + header + "\x05\x06");
    EXPECT_EQ(read_npy("v.npy").to_integers(), (std::vector<std::int64_t>{5, 6}));
  }
  put_file("t.npy", npy_bytes("{'descr': '<i2', 'fortran_order': False, 'shape': (1, 1,), }  \n", 2));
  EXPECT_EQ(read_npy("t.npy").shape, (std::vector<std::int64_t>{1, 1}));
}

TEST_F(round_trips, two_raw_bytes_in_npy_are_bf16) {
  for (const std::string descr : {"<V2", "|V2"}) {
    put_file("b.npy", npy_bytes("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (), }\n") +
                          std::string("\x80\x3f"));
    const Array array = read_npy("b.npy");
    EXPECT_EQ(array.element, Element::bf16);
    EXPECT_EQ(array.to_floats(), std::vector<float>{1.0f});
  }
}

// The same array with its axes reversed in memory, computed from the definition: position of (i0, i1, ...) is
// i0 + extent0 * (i1 + extent1 * ...).
Array in_fortran_order(const Array& array) {
  Array result = array;
  const std::size_t width = bytes_of(array.element);
  for (std::int64_t row_major = 0; row_major < array.elements(); ++row_major) {
    std::int64_t rest = row_major, position = 0;
    std::vector<std::int64_t> index(array.shape.size());
    for (std::size_t axis = array.shape.size(); axis-- > 0;) {
      index[axis] = rest % array.shape[axis];
      rest /= array.shape[axis];
    }
    for (std::size_t axis = array.shape.size(); axis-- > 0;) {
      position = position * array.shape[axis] + index[axis];
    }
    std::memcpy(result.data.data() + static_cast<std::size_t>(position) * width,
                array.data.data() + static_cast<std::size_t>(row_major) * width, width);
  }
  return result;
}

TEST_F(round_trips, fortran_order_becomes_row_major) {
  int failures = 0;
  auto arrays = one_of_every_kind(3);
  arrays["larger than one piece"] = random_array(Element::f64, {37, 1, 61, 71}, 4);
  for (const auto& [name, array] : arrays) {
    write_npy("f.npy", in_fortran_order(array));
    std::string bytes = file_bytes("f.npy");
    const std::size_t where = bytes.find("False");
    ASSERT_NE(where, bytes.npos);
    put_file("f.npy", bytes.replace(where, 5, "True "));
    if (same(read_npy("f.npy"), array)) continue;
    ++failures;
    ADD_FAILURE() << "one_of_every_kind(3)[\"" << name << "\"]";
  }
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace heed::test
