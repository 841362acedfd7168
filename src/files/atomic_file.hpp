// SPDX-License-Identifier: Apache-2.0
// Saving so that a reader, a crash or a full disk sees the old file or the new one and nothing between.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "files/descriptor.hpp"

namespace heed::files {

// Bytes go to a temporary file in the target's folder; commit() flushes it and gives it the target's name.
// Without a commit the destructor removes it and the target is untouched.
class AtomicFile {
 public:
  // Follows a symbolic link to the file it names. Refuses anything but a regular file: renaming onto a device
  // or a pipe would replace it.
  explicit AtomicFile(const std::filesystem::path& target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* from, std::size_t count);
  void commit();

 private:
  void create_temporary();

  std::string name_;       // as the caller gave it, for sentences
  std::string file_name_;  // of the target, within its folder
  std::string temporary_name_{};
  Descriptor folder_, temporary_;
};

}  // namespace heed::files
