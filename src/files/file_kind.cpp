// SPDX-License-Identifier: Apache-2.0
#include "files/file_kind.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "files/safetensors.hpp"

namespace heed::files {
namespace {

using std::string_view_literals::operator""sv;

struct Beginning {
  std::string_view bytes;
  const char* kind;
};

constexpr Beginning beginnings[] = {
    {"\x93NUMPY"sv, "an .npy file"},
    {"GGUF"sv, "a GGUF file"},
    {"PK\3\4"sv, "a zip archive, as PyTorch's .pt and NumPy's .npz files are"},
    {"\x80\x02"sv, "a Python pickle, as older PyTorch files are"},
    {"\x80\x03"sv, "a Python pickle"},
    {"\x80\x04"sv, "a Python pickle"},
    {"\x80\x05"sv, "a Python pickle"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
    {"\x1f\x8b"sv, "a gzip archive"},
    {"version https://git-lfs"sv, "a pointer of Git LFS, which stands for a file that was not downloaded"},
    {"<!DOCTYPE"sv, "a page of HTML"},
    {"<html"sv, "a page of HTML"}};

bool is_safetensors(std::string_view start, std::int64_t size) {
  std::uint64_t length = 0;
  if (start.size() <= sizeof length || start[sizeof length] != '{') return false;
  std::memcpy(&length, start.data(), sizeof length);
  return length <= std::uint64_t{longest_safetensors_header} &&
         static_cast<std::int64_t>(length) <= size - static_cast<std::int64_t>(sizeof length);
}

bool is_json(std::string_view start) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t first = start.find_first_not_of(blanks);
  if (first == start.npos || (start[first] != '{' && start[first] != '[')) return false;
  const std::size_t second = start.find_first_not_of(blanks, first + 1);
  return second != start.npos && std::string_view("\"{[]}-0123456789tfn").find(start[second]) != start.npos;
}

const char* kind_of(std::string_view start, std::int64_t size) {
  for (const Beginning& beginning : beginnings)
    if (start.starts_with(beginning.bytes)) return beginning.kind;
  if (is_safetensors(start, size)) return "a safetensors file";
  if (!is_json(start)) return nullptr;
  const bool is_index = start.find("\"weight_map\"") != start.npos;
  return is_index ? "the index of a sharded checkpoint, in JSON" : "JSON";
}

}  // namespace

Error not_a(const char* wanted, const InputFile& file, const std::string& otherwise) {
  std::string start(static_cast<std::size_t>(std::min<std::int64_t>(file.size(), 4096)), '\0');
  file.read_at(0, start.data(), start.size());
  const char* kind = kind_of(start, file.size());
  if (!kind || std::string_view(kind) == wanted) return Error(Error::file, file.name() + ": " + otherwise);
  return Error(Error::file, file.name() + ": is " + kind + ", not " + wanted);
}

}  // namespace heed::files
