// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: which arrays there are and where their bytes lie.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/input_file.hpp"
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

// A safetensors file whose header is read and checked; its arrays are read one by one, where they lie.

class SafetensorsFile {
 public:
  explicit SafetensorsFile(InputFile);

  const std::string& name() const { return file_.name(); }
  Layout& layout() { return layout_; }
  bool has(const std::string& tensor) const { return layout_.arrays.contains(tensor); }

  // Fills in the data of an array of the layout, from its own bytes of the file and no others.
  void read(const Placement&) const;
  Array read(const std::string& tensor);  // one that is there; its data does not stay here
  // Rows [first, first + count) of one that has them, and no other bytes.
  Array read_rows(const std::string& tensor, std::int64_t first, std::int64_t count) const;

 private:
  InputFile file_;
  std::int64_t data_begin_ = 0;
  Layout layout_;
};

}  // namespace heed::files
