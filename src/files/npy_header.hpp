// SPDX-License-Identifier: Apache-2.0
// The header of an .npy file: a Python dict with the element type, the memory order and the shape.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "heed/files.hpp"

namespace heed::files {

struct NpyHeader {
  Element element = Element::f32;
  bool fortran_order = false;
  std::vector<std::int64_t> shape{};
};

// The dict, without the magic, version and length before it. bf16 has no name of its own in the format; NumPy
// saves it as two raw bytes, '<V2', and that is how it is written here; '<V2' and '|V2' are both read as
// bf16.
NpyHeader read_npy_header(const std::string& file, std::string_view text);
std::string npy_dict(const Array&);

}  // namespace heed::files
