// SPDX-License-Identifier: Apache-2.0
// A temporary file without a name, then fsync, a name beside the target, rename, fsync of the folder.
#include "files/atomic_file.hpp"

#include <atomic>
#include <cerrno>

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

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& target) : name_(target.string()) {
  const std::filesystem::path path = follow_links(target);
  file_name_ = path.filename().string();
  if (file_name_.empty()) throw Error(Error::file, name_ + ": does not name a file");
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (!folder_.open(folder)) throw system_error(name_ + ": its folder cannot be opened", errno);
  create_temporary();
}

AtomicFile::~AtomicFile() { remove_temporary(); }

void AtomicFile::create_temporary() {
  system::FileStatus status;
  const bool exists = folder_.examine(file_name_, status);
  if (exists && !status.is_regular) throw Error(Error::file, name_ + ": is not a regular file");

  temporary_ = folder_.create_without_name();
  if (!temporary_.is_open())
    take_name([&](const std::string& name) {
      temporary_ = folder_.create(name);
      return temporary_.is_open();
    });
  if (!temporary_.is_open()) throw system_error(name_ + ": no file can be created in its folder", errno);
  if (exists && !system::set_permissions(temporary_, status.permissions)) {
    const int error_number = errno;
    remove_temporary();  // no destructor runs for a constructor that throws
    throw system_error(name_ + ": its permissions cannot be kept", error_number);
  }
}

// The name does not contain the target's: that one may already be as long as the file system allows.
void AtomicFile::take_name(const std::function<bool(const std::string&)>& make) {
  static std::atomic<unsigned> counter = 0;
  constexpr int max_attempts = 1000;  // names left behind by processes that were killed
  for (int i = 0; i < max_attempts; ++i) {
    const std::string name =
        ".heed-" + std::to_string(system::process_id()) + "-" + std::to_string(counter++) + ".tmp";
    if (make(name)) temporary_name_ = name;
    if (!temporary_name_.empty() || errno != EEXIST) return;
  }
}

// Windows removes no file that is open.
void AtomicFile::remove_temporary() {
  temporary_.close();
  if (!temporary_name_.empty()) folder_.remove(temporary_name_);
}

void AtomicFile::write(const void* from, std::size_t count) {
  const auto* next = static_cast<const std::byte*>(from);
  while (count > 0) {
    const std::ptrdiff_t written = system::write_some(temporary_, next, count);
    if (written < 0) throw system_error(name_ + ": cannot be written", errno);
    next += written;
    count -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (!system::flush(temporary_)) throw system_error(name_ + ": cannot be flushed to disk", errno);
  if (temporary_name_.empty()) {
    take_name([&](const std::string& name) { return folder_.give_name(temporary_, name); });
    if (temporary_name_.empty()) throw system_error(name_ + ": cannot be named", errno);
  }
  if (!temporary_.close()) throw system_error(name_ + ": cannot be closed", errno);
  if (!folder_.rename(temporary_name_, file_name_)) throw system_error(name_ + ": cannot be replaced", errno);
  temporary_name_.clear();
  if (!folder_.flush())
    throw system_error(name_ + ": is saved, but its folder cannot be flushed to disk", errno);
}

}  // namespace heed::files
