// SPDX-License-Identifier: Apache-2.0
// Saving so that a reader, a crash or a full disk sees the old file or the new one and nothing between.
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include "files/input_file.hpp"

namespace heed::files {

// Bytes go to a temporary file in the target's folder; commit() flushes it and gives it the target's name.
// Without a commit it is gone with this, and where the file system has files without a name also with a
// process that is killed. The target is untouched then.
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
  // Calls make(name) with one name after another until it returns true, or fails for another reason than that
  // somebody has the name; errno then says why.
  void take_name(const std::function<bool(const std::string&)>& make);
  void remove_temporary();

  std::string name_;              // as the caller gave it, for sentences
  std::string file_name_;         // of the target, within its folder
  std::string temporary_name_{};  // "": it has none, or is the target by now
  system::Folder folder_{};
  system::Descriptor temporary_{};
};

}  // namespace heed::files
