// SPDX-License-Identifier: Apache-2.0
// Arrays in files: safetensors and .npy, read strictly and saved atomically. A file from outside is hostile
// until checked.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "heed/export.hpp"
#include "heed/tensor.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

enum class Element : std::uint8_t { boolean, u8, i8, u16, i16, f16, bf16, u32, i32, f32, u64, i64, f64 };

HEED_API std::size_t bytes_of(Element);
HEED_API const char* name_of(Element);  // "bool", "u8", ..., "f64"

// An array that owns its elements: row-major, little-endian, any rank.
struct HEED_API Array {
  Element element = Element::f32;
  std::vector<std::int64_t> shape{};
  std::vector<std::byte> data{};

  std::int64_t elements() const;
  std::vector<float> to_floats() const;           // from any floating element; refuses integers
  std::vector<std::int64_t> to_integers() const;  // from any integer or boolean element; refuses floats
  static Array from_floats(std::vector<std::int64_t> shape, const std::vector<float>& values,
                           Element = Element::f32);
};

using Arrays = std::map<std::string, Array>;

// What a safetensors file says about itself under "__metadata__": {"format": "pt"} and the like. UTF-8.
using Metadata = std::map<std::string, std::string>;

// `metadata`, if given, becomes the file's; it changes only once the whole file is read.
HEED_API Arrays read_safetensors(const std::filesystem::path&, Metadata* metadata = nullptr);
HEED_API void write_safetensors(const std::filesystem::path&, const Arrays&, const Metadata& = {});
HEED_API Array read_npy(const std::filesystem::path&);
HEED_API void write_npy(const std::filesystem::path&, const Array&);

}  // namespace HEED_NAMESPACE
