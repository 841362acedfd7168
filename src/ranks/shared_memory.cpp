// SPDX-License-Identifier: Apache-2.0
#include "heed/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "refusal/refusal.hpp"

namespace heed::ranks::shared {
namespace {

constexpr const char* folder = "/dev/shm/";  // in memory, where there is one

struct File {
  int number;
  explicit File(int of) : number(of) {}
  ~File() {
    if (number >= 0) close(number);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
};

// All of it now, or an error: a page that the machine lacks when it is first touched would end the process.
int fill(int file, std::size_t bytes) {
#if defined(__linux__)
  rlimit longest{};  // of a file: beyond it a signal would
  if (getrlimit(RLIMIT_FSIZE, &longest) == 0 && longest.rlim_cur < bytes) return EFBIG;
  return posix_fallocate(file, 0, static_cast<off_t>(bytes));
#else
  static_cast<void>(file), static_cast<void>(bytes);
  return ENOSYS;
#endif
}

// By chance, too: in another folder of this name, as a container has one, it must not be somebody else's.
std::string name_of_its_own() {
  std::random_device chance;
  std::string name = folder + ("heed-" + std::to_string(getpid()));
  for (int n = 0; n < 4; ++n) name += "-" + std::to_string(chance());
  return name;
}

[[noreturn]] void fail(const std::string& name, const char* what, int error) {
  throw Error(Error::file, name + ": " + what + ": " + std::strerror(error));
}

// Whether the file is there, with all its bytes. It has its name last: they take a second for 4 GB, and who
// is killed meanwhile, as for want of memory, leaves nothing behind. Not everywhere can that be done.
bool make_at_once(const std::string& name, std::size_t bytes) {
#if defined(O_TMPFILE)
  const File file{open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600)};
  if (file.number < 0) return false;
  if (const int error = fill(file.number, bytes)) fail(name, "has not the room", error);
  const std::string here = "/proc/self/fd/" + std::to_string(file.number);
  return linkat(AT_FDCWD, here.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
#else
  return static_cast<void>(name), static_cast<void>(bytes), false;
#endif
}

}  // namespace
}  // namespace heed::ranks::shared

namespace heed::inline v0_2 {

using ranks::shared::fail, ranks::shared::File, ranks::shared::fill, ranks::shared::make_at_once,
    ranks::shared::name_of_its_own;

SharedMemory::SharedMemory(std::size_t bytes) : name_(name_of_its_own()) {
  try {
    is_named_ = make_at_once(name_, bytes);
    const bool is_made = is_named_;
    const int how = O_RDWR | O_CLOEXEC | (is_made ? O_NOFOLLOW : O_CREAT | O_EXCL);
    const File file{open(name_.c_str(), how, 0600)};
    if (file.number < 0) fail(name_, "cannot be made", errno);
    is_named_ = true;
    if (const int error = is_made ? 0 : fill(file.number, bytes)) fail(name_, "has not the room", error);
    map(file.number, bytes);
  } catch (...) {
    forget_name();
    throw;
  }
}

SharedMemory::SharedMemory(const std::string& name, std::size_t bytes) : name_(name) {
  const File file{open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW)};
  if (file.number < 0) fail(name, "cannot be opened", errno);
  if (lseek(file.number, 0, SEEK_END) != static_cast<off_t>(bytes))
    throw Error(Error::file, name + ": is of another length");
  map(file.number, bytes);
}

void SharedMemory::map(int file, std::size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) fail(name_, "cannot be mapped", errno);
  bytes_ = {static_cast<std::byte*>(at), bytes};
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : name_(std::move(other.name_)),
      is_named_(std::exchange(other.is_named_, false)),
      bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory::~SharedMemory() {
  forget_name();
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

void SharedMemory::forget_name() {
  if (std::exchange(is_named_, false)) unlink(name_.c_str());
}

}  // namespace heed::inline v0_2
