// SPDX-License-Identifier: Apache-2.0
// A file that is read front to back, or at places. Its real size is known before anything in it is believed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "files/descriptor.hpp"

namespace heed::files {

class InputFile {
 public:
  explicit InputFile(const std::filesystem::path&);

  const std::string& name() const { return name_; }  // begins every sentence about this file
  std::int64_t size() const { return size_; }

  // The next `count` bytes; a file that shrinks while it is read is an error.
  void read(void* into, std::size_t count);
  // The same from a place of its own, which moves nothing.
  void read_at(std::int64_t offset, void* into, std::size_t count) const;

 private:
  std::string name_;
  Descriptor descriptor_;
  std::int64_t size_ = 0, position_ = 0;
};

}  // namespace heed::files
