// SPDX-License-Identifier: Apache-2.0
// Reading a regular file.
#include "files/input_file.hpp"

#include <cerrno>

namespace heed::files {

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()) {
  descriptor_ = system::open_to_read(path);
  if (!descriptor_.is_open()) throw system_error(name_ + ": cannot be opened", errno);
  system::FileStatus status;
  if (!system::examine(descriptor_, status)) throw system_error(name_ + ": cannot be examined", errno);
  if (!status.is_regular) throw Error(Error::file, name_ + ": is not a regular file");
  size_ = status.size;
}

void InputFile::read(void* into, std::size_t count) {
  read_at(position_, into, count);
  position_ += static_cast<std::int64_t>(count);
}

void InputFile::read_at(std::int64_t offset, void* into, std::size_t count) const {
  auto* next = static_cast<std::byte*>(into);
  while (count > 0) {
    const std::ptrdiff_t got = system::read_some(descriptor_, offset, next, count);
    if (got < 0) throw system_error(name_ + ": cannot be read", errno);
    if (got == 0) throw Error(Error::file, name_ + ": became shorter while it was read");
    next += got;
    offset += got;
    count -= static_cast<std::size_t>(got);
  }
}

}  // namespace heed::files
