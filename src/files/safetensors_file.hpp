// SPDX-License-Identifier: Apache-2.0
// A safetensors file whose header is read and checked; its arrays are read one by one, where they lie.
#pragma once
#include <string>

#include "files/input_file.hpp"
#include "files/safetensors_header.hpp"

namespace heed::files {

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
