// SPDX-License-Identifier: Apache-2.0
// Reading a regular file.
#include "files/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace heed::files {

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()) {
  // O_NONBLOCK: a pipe nobody writes to is refused below instead of waited for.
  descriptor_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor_.is_open()) throw system_error(name_ + ": cannot be opened", errno);
  struct stat status{};
  if (::fstat(descriptor_.get(), &status) != 0) throw system_error(name_ + ": cannot be examined", errno);
  if (!S_ISREG(status.st_mode)) throw Error(Error::file, name_ + ": is not a regular file");
  size_ = status.st_size;
}

void InputFile::read(void* into, std::size_t count) {
  read_at(position_, into, count);
  position_ += static_cast<std::int64_t>(count);
}

void InputFile::read_at(std::int64_t offset, void* into, std::size_t count) const {
  auto* next = static_cast<std::byte*>(into);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_.get(), next, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error(name_ + ": cannot be read", errno);
    if (got == 0) throw Error(Error::file, name_ + ": became shorter while it was read");
    next += got;
    offset += got;
    count -= static_cast<std::size_t>(got);
  }
}

}  // namespace heed::files
