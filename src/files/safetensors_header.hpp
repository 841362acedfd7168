// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: which arrays there are and where their bytes lie.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "heed/files.hpp"

namespace heed::files {

constexpr std::int64_t longest_safetensors_header = 100'000'000;  // what the format's own library allows
constexpr std::string_view metadata_key = "__metadata__";

// Where the data of one array lies, in bytes after the header.
struct Placement {
  Arrays::pointer array;  // into Layout::arrays, whose nodes never move
  std::int64_t begin, end;
};

struct Layout {
  Arrays arrays{};  // element and shape; no data yet
  Metadata metadata{};
  std::vector<Placement>
      placements{};  // in the order of the file; together they cover every byte exactly once
};

// `data_bytes` is how much of the file follows the header. Throws unless everything agrees with it.
Layout read_safetensors_header(const std::string& file, std::string_view header, std::int64_t data_bytes);

// The header, padded with spaces so that the data that follows is aligned to 8 bytes, and the order of that
// data: widest elements first, then by name, so every array is aligned to its own element.
struct SafetensorsHeader {
  std::string text;
  std::vector<const Array*> order;
};
SafetensorsHeader make_safetensors_header(const std::string& file, const Arrays&, const Metadata&);

}  // namespace heed::files
