// SPDX-License-Identifier: Apache-2.0
// A file that is read front to back, or at places. Its real size is known before anything in it is believed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "heed/error.hpp"
#include "system/system.hpp"

namespace heed::files {

// The error of a call of the system that failed.
inline Error system_error(const std::string& what_failed, int error_number) {
  return Error(Error::file, what_failed + ": " + std::generic_category().message(error_number));
}

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
  system::Descriptor descriptor_;
  std::int64_t size_ = 0, position_ = 0;
};

}  // namespace heed::files
