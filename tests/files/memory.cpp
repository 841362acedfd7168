// SPDX-License-Identifier: Apache-2.0
// Reading holds the file's bytes once and little more, whatever the file claims.
#include "allocation_meter.hpp"
#include "sample_arrays.hpp"
#include "scratch_folder.hpp"

namespace heed::test {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

class memory : public ScratchFolder {};

TEST_F(memory, an_array_is_held_once) {
  const Array array = random_array(Element::f32, {1024, 2048}, 1);  // 8 MiB
  write_npy("a.npy", array);
  write_safetensors("a.safetensors", {{"a", array}, {"b", array}});
  {
    const AllocationMeter meter;
    const Array read = read_npy("a.npy");
    EXPECT_LT(meter.peak(), 8 * mebibyte + 65536);
  }
  const AllocationMeter meter;
  const Arrays read = read_safetensors("a.safetensors");
  EXPECT_LT(meter.peak(), 16 * mebibyte + 65536);
}

TEST_F(memory, fortran_order_takes_one_mebibyte_more) {
  const Array array = random_array(Element::u16, {2048, 2048}, 2);  // 8 MiB
  write_npy("a.npy", array);
  std::string bytes = file_bytes("a.npy");
  put_file("a.npy", bytes.replace(bytes.find("False"), 5, "True "));
  const AllocationMeter meter;
  const Array read = read_npy("a.npy");
  EXPECT_LT(meter.peak(), 9 * mebibyte + 65536);
}

TEST_F(memory, numbers_in_a_file_allocate_nothing_before_they_are_checked) {
  const std::vector<std::string> claims{
      little_endian(100'000'000, 8) + "{}",
      safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1000000000000],"data_offsets":[0,1000000000000]}})"),
      npy_bytes("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,), }\n")};
  for (const std::string& claim : claims) {
    put_file("claim", claim);
    const AllocationMeter meter;
    EXPECT_NE(refusal([] { read_safetensors("claim"); }), "nothing");
    EXPECT_NE(refusal([] { read_npy("claim"); }), "nothing");
    EXPECT_LT(meter.peak(), 65536u) << claim;
  }
}

// The tables made from a header are a few times its text: a map node, a shape and a placement for each
// tensor.
TEST_F(memory, headers_of_nothing_but_entries_take_a_few_times_their_length) {
  std::string many = "{", many_axes, long_name(mebibyte, 'n');
  for (int i = 0; i < 20000; ++i) {
    many +=
        (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  for (int i = 0; i < 500000; ++i) many_axes += i > 0 ? ",0" : "0";
  const std::vector<std::string> headers{
      many + "}", R"({"a":{"dtype":"U8","shape":[)" + many_axes + R"(],"data_offsets":[0,0]}})",
      "{\"" + long_name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"};
  for (const std::string& header : headers) {
    put_file("h", safetensors_bytes(header));
    const AllocationMeter meter;
    EXPECT_FALSE(read_safetensors("h").empty());
    EXPECT_LT(meter.peak(), 6 * header.size()) << header.substr(0, 60);
  }
}

// Two strings in a map's node are 96 bytes, made from no less than the 7 of "k":"", and those are there too.
TEST_F(memory, metadata_takes_fifteen_times_its_length_at_the_most) {
  std::string many = R"({"__metadata__":{)";
  for (int i = 0; i < 100000; ++i) many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
  for (const std::string& header :
       {many + "}}", R"({"__metadata__":{"k":")" + std::string(mebibyte, 'v') + "\"}}"}) {
    put_file("h", safetensors_bytes(header));
    const AllocationMeter meter;
    Metadata metadata;
    read_safetensors("h", &metadata);
    EXPECT_FALSE(metadata.empty());
    EXPECT_LT(meter.peak(), 15 * header.size()) << header.substr(0, 60);
  }
}

TEST_F(memory, running_out_of_it_is_an_error) {
  const std::size_t bytes = 8 * mebibyte;
  put_file("a.safetensors",
           safetensors_bytes(R"({"a":{"dtype":"U8","shape":[8388608],"data_offsets":[0,8388608]}})"));
  std::filesystem::resize_file("a.safetensors", std::filesystem::file_size("a.safetensors") + bytes);
  put_file("a.npy", npy_bytes("{'descr': '|u1', 'fortran_order': False, 'shape': (8388608,), }\n", bytes));
  const AllocationMeter meter(mebibyte);
  EXPECT_EQ(refusal([] { read_safetensors("a.safetensors"); }),
            "capacity: a.safetensors: no memory for a file of 8388681 bytes");
  EXPECT_EQ(refusal([] { read_npy("a.npy"); }), "capacity: a.npy: no memory for a file of 8388682 bytes");
}

}  // namespace
}  // namespace heed::test
