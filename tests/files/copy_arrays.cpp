// SPDX-License-Identifier: Apache-2.0
// copy_arrays FROM TO: reads one file and writes the other. The ending of each name says its format; an .npy
// file holds the array named "array" and no metadata.
#include <cstdio>
#include <filesystem>

#include "heed/error.hpp"
#include "heed/files.hpp"

namespace {

bool is_npy(const std::filesystem::path& path) { return path.extension() == ".npy"; }

void copy(const std::filesystem::path& from, const std::filesystem::path& to) {
  heed::Metadata metadata;
  const heed::Arrays arrays =
      is_npy(from) ? heed::Arrays{{"array", heed::read_npy(from)}} : heed::read_safetensors(from, &metadata);
  if (is_npy(to)) {
    heed::write_npy(to, arrays.at("array"));
  } else {
    heed::write_safetensors(to, arrays, metadata);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fputs("usage: copy_arrays FROM TO\n", stderr);
    return 2;
  }
  try {
    copy(arguments[1], arguments[2]);
  } catch (const heed::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
