// SPDX-License-Identifier: Apache-2.0
// A folder of its own for each test, which is the current one while the test runs: sentences then name files
// exactly.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "heed/error.hpp"

namespace heed::test {

class ScratchFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "heed-files-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(folder_);
  }
  void TearDown() override {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(folder_);
  }

 private:
  std::filesystem::path folder_{}, before_{};
};

inline void put_file(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);  // some file systems flush a file that is truncated, at milliseconds each
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

// The bytes of an unsigned integer, lowest first.
inline std::string little_endian(std::uint64_t value, std::size_t count) {
  std::string bytes(count, '\0');
  std::memcpy(bytes.data(), &value, count);
  return bytes;
}

inline std::string safetensors_bytes(const std::string& header, std::size_t data_bytes = 0) {
  return little_endian(header.size(), 8) + header + std::string(data_bytes, '\0');
}

inline std::string npy_bytes(const std::string& header, std::size_t data_bytes = 0) {
  return std::string("\x93NUMPY\x01\0", 8) + little_endian(header.size(), 2) + header +
         std::string(data_bytes, '\0');
}

// What a call refuses with: "file: w.npy: ...", the code first; "nothing" if it returns.
template <class Call>
std::string refusal(Call call) {
  const char* const codes[] = {"shape",   "dtype",       "device",   "value", "ambiguous",
                               "overlap", "unsupported", "capacity", "file",  "busy"};
  try {
    call();
  } catch (const Error& error) {
    return std::string(codes[error.code]) + ": " + error.what();
  }
  return "nothing";
}

}  // namespace heed::test
