// SPDX-License-Identifier: Apache-2.0
// A temporary file without a name, then fsync, a name beside the target, rename, fsync of the folder.
#include "files/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace heed::files {
namespace {

// Where a chain of symbolic links ends, whether or not a file is there yet.
std::filesystem::path follow_links(std::filesystem::path path) {
  constexpr int longest_chain = 40;  // as the kernel counts
  for (int i = 0; i < longest_chain; ++i) {
    std::error_code error;
    const std::filesystem::path next = std::filesystem::read_symlink(path, error);
    if (error) return path;
    path = path.parent_path() / next;  // an absolute `next` replaces the folder
  }
  return path;
}

// Where Linux shows an open file, by which one without a name is given one.
std::string link_of(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }

// A file that is gone when the process is, however that ends. None where the file system has no such files,
// or nothing shows them.
Descriptor nameless_file(int folder) {
#ifdef O_TMPFILE
  Descriptor file(::openat(folder, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  if (file.is_open() && ::access(link_of(file.get()).c_str(), F_OK) == 0) return file;
#else
  static_cast<void>(folder);
#endif
  return {};
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& target) : name_(target.string()) {
  const std::filesystem::path path = follow_links(target);
  file_name_ = path.filename().string();
  if (file_name_.empty()) throw Error(Error::file, name_ + ": does not name a file");
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  folder_ = Descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_.is_open()) throw system_error(name_ + ": its folder cannot be opened", errno);
  create_temporary();
}

AtomicFile::~AtomicFile() { remove_temporary(); }

void AtomicFile::create_temporary() {
  struct stat status{};
  const bool exists = ::fstatat(folder_.get(), file_name_.c_str(), &status, 0) == 0;
  if (exists && !S_ISREG(status.st_mode)) throw Error(Error::file, name_ + ": is not a regular file");

  temporary_ = nameless_file(folder_.get());
  if (!temporary_.is_open())
    take_name([&](const char* name) {
      temporary_ = Descriptor(::openat(folder_.get(), name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      return temporary_.is_open();
    });
  if (!temporary_.is_open()) throw system_error(name_ + ": no file can be created in its folder", errno);
  constexpr mode_t permissions = 0777;
  if (exists && ::fchmod(temporary_.get(), status.st_mode & permissions) != 0) {
    const int error_number = errno;
    remove_temporary();  // no destructor runs for a constructor that throws
    throw system_error(name_ + ": its permissions cannot be kept", error_number);
  }
}

// The name does not contain the target's: that one may already be as long as the file system allows.
void AtomicFile::take_name(const std::function<bool(const char*)>& make) {
  static std::atomic<unsigned> counter = 0;
  constexpr int max_attempts = 1000;  // names left behind by processes that were killed
  for (int i = 0; i < max_attempts; ++i) {
    const std::string name = ".heed-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
    if (make(name.c_str())) temporary_name_ = name;
    if (!temporary_name_.empty() || errno != EEXIST) return;
  }
}

void AtomicFile::remove_temporary() {
  if (!temporary_name_.empty()) ::unlinkat(folder_.get(), temporary_name_.c_str(), 0);
}

void AtomicFile::write(const void* from, std::size_t count) {
  const auto* next = static_cast<const std::byte*>(from);
  while (count > 0) {
    const ssize_t written = ::write(temporary_.get(), next, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error(name_ + ": cannot be written", errno);
    next += written;
    count -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(temporary_.get()) != 0) throw system_error(name_ + ": cannot be flushed to disk", errno);
  if (temporary_name_.empty()) {
    const std::string file = link_of(temporary_.get());
    take_name([&](const char* name) {
      return ::linkat(AT_FDCWD, file.c_str(), folder_.get(), name, AT_SYMLINK_FOLLOW) == 0;
    });
    if (temporary_name_.empty()) throw system_error(name_ + ": cannot be named", errno);
  }
  if (::close(temporary_.release()) != 0) throw system_error(name_ + ": cannot be closed", errno);
  if (::renameat(folder_.get(), temporary_name_.c_str(), folder_.get(), file_name_.c_str()) != 0) {
    throw system_error(name_ + ": cannot be replaced", errno);
  }
  temporary_name_.clear();
  // EINVAL: a file system that has no such call for folders.
  if (::fsync(folder_.get()) != 0 && errno != EINVAL) {
    throw system_error(name_ + ": is saved, but its folder cannot be flushed to disk", errno);
  }
}

}  // namespace heed::files
