// SPDX-License-Identifier: Apache-2.0
// A file of another kind is called what it is.
#include "heed/files.hpp"
#include "hostile_file.hpp"
#include "sample_arrays.hpp"

namespace heed::test {
namespace {

class file_kinds : public ScratchFolder {};

Arrays read_arrays(const std::filesystem::path& path) { return read_safetensors(path); }

const std::string after_the_magic(100, 'x');

TEST_F(file_kinds, what_is_no_safetensors_file_is_named) {
  write_npy("array", random_array(Element::f32, {3}, 1));
  const std::vector<HostileFile> cases{
      {file_bytes("array"), "file: x: is an .npy file, not a safetensors file"},
      {"{\"metadata\": {\"total_size\": 1}, \"weight_map\": {}}",
       "file: x: is the index of a sharded checkpoint, in JSON, not a safetensors file"},
      {"{\n  \"model_type\": \"llama\"\n}", "file: x: is JSON, not a safetensors file"},
      {"[1, 2]", "file: x: is JSON, not a safetensors file"},
      {"{}", "file: x: is JSON, not a safetensors file"},
      {"GGUF\3" + after_the_magic, "file: x: is a GGUF file, not a safetensors file"},
      {"PK\3\4" + after_the_magic,
       "file: x: is a zip archive, as PyTorch's .pt and NumPy's .npz files are, not a safetensors file"},
      {"\x80\x02\x8a\nl\xfc" + after_the_magic,
       "file: x: is a Python pickle, as older PyTorch files are, not a safetensors file"},
      {"\x80\x04\x95" + after_the_magic, "file: x: is a Python pickle, not a safetensors file"},
      {"\x89HDF\r\n\x1a\n" + after_the_magic, "file: x: is an HDF5 file, not a safetensors file"},
      {"\x1f\x8b\x08" + after_the_magic, "file: x: is a gzip archive, not a safetensors file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
       "file: x: is a pointer of Git LFS, which stands for a file that was not downloaded, not a safetensors "
       "file"},
      {"<!DOCTYPE html><html>", "file: x: is a page of HTML, not a safetensors file"},
      // What nobody knows is described by what is wrong with it.
      {after_the_magic, "file: x: does not begin as a safetensors file does"},
      {"abc", "file: x: 3 bytes are too few for a safetensors file"},
      {safetensors_bytes("[]"), "file: x: header byte 0: expected '{', found '['"},
  };
  EXPECT_EQ(count_failures(cases, read_arrays), 0);
}

TEST_F(file_kinds, what_is_no_npy_file_is_named) {
  const std::vector<HostileFile> cases{
      {safetensors_bytes("{}"), "file: x: is a safetensors file, not an .npy file"},
      {"{\"a\": 1}", "file: x: is JSON, not an .npy file"},
      {"GGUF\3" + after_the_magic, "file: x: is a GGUF file, not an .npy file"},
      {after_the_magic, "file: x: does not begin as an .npy file does"},
  };
  EXPECT_EQ(count_failures(cases, read_npy), 0);
}

}  // namespace
}  // namespace heed::test
