// SPDX-License-Identifier: Apache-2.0
#include "heed/shared_memory.hpp"

#include <utility>

#include "heed/error.hpp"
#ifdef __linux__
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace heed::ranks::shared {
namespace {

constexpr const char *folder = "/dev/shm/",  // in memory, where there is one
    *prefix = "heed-";

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
  rlimit longest{};  // of a file: beyond it a signal would
  if (getrlimit(RLIMIT_FSIZE, &longest) == 0 && longest.rlim_cur < bytes) return EFBIG;
  return posix_fallocate(file, 0, static_cast<off_t>(bytes));
}

[[noreturn]] void fail(const std::string& name, const char* what, int error) {
  throw Error(Error::file, name + ": " + what + ": " + std::strerror(error));
}

// By chance, too: in another folder of this name, as a container has one, it must not be somebody else's.
// std::random_device would need a newer C library than all the rest (arc4random, glibc 2.36).
std::string name_of_its_own() {
  std::string name = std::string(folder) + prefix + std::to_string(getpid());
  std::array<unsigned, 4> chance{};
  if (getentropy(chance.data(), sizeof chance) != 0) fail(name, "cannot be named", errno);
  for (const unsigned number : chance) name += "-" + std::to_string(number);
  return name;
}

// Who names a file holds its lock until it has no name any more: one that nobody holds is that of a process
// which was killed before the others had opened it.
bool lock(int file) { return flock(file, LOCK_EX | LOCK_NB) == 0; }

void remove_forgotten() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    const File file{open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    struct stat found{};
    if (file.number < 0 || fstat(file.number, &found) != 0 || !S_ISREG(found.st_mode)) continue;
    if (lock(file.number)) unlink(entry.path().c_str());
  }
}

// A file with all its bytes, or -1. It has its name last: they take a second for 4 GB, and who is killed
// meanwhile, as for want of memory, leaves nothing behind. Not everywhere can that be done.
int make_at_once(const std::string& name, std::size_t bytes) {
#if defined(O_TMPFILE)
  File file{open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600)};
  if (file.number < 0 || !lock(file.number)) return -1;
  if (const int error = fill(file.number, bytes)) fail(name, "has not the room", error);
  const std::string here = "/proc/self/fd/" + std::to_string(file.number);
  if (linkat(AT_FDCWD, here.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) return -1;
  return std::exchange(file.number, -1);
#else
  return static_cast<void>(name), static_cast<void>(bytes), -1;
#endif
}

}  // namespace
}  // namespace heed::ranks::shared

namespace HEED_NAMESPACE {

using ranks::shared::fail, ranks::shared::File, ranks::shared::fill, ranks::shared::lock,
    ranks::shared::make_at_once, ranks::shared::name_of_its_own, ranks::shared::remove_forgotten;

SharedMemory::SharedMemory(std::size_t bytes) : name_(name_of_its_own()) {
  remove_forgotten();
  try {
    named_ = make_at_once(name_, bytes);
    const bool is_made = named_ >= 0;
    if (!is_made) named_ = open(name_.c_str(), O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0600);
    if (named_ < 0) fail(name_, "cannot be made", errno);
    if (!is_made) lock(named_);
    if (const int error = is_made ? 0 : fill(named_, bytes)) fail(name_, "has not the room", error);
    const File file{open(name_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW)};  // as all others: by its name
    if (file.number < 0) fail(name_, "cannot be opened", errno);
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

SharedMemory::~SharedMemory() {
  forget_name();
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

void SharedMemory::forget_name() {
  if (named_ < 0) return;
  unlink(name_.c_str());
  close(std::exchange(named_, -1));
}

}  // namespace HEED_NAMESPACE
#else

namespace HEED_NAMESPACE {

SharedMemory::SharedMemory(std::size_t) {
  throw Error(Error::file, "memory that processes share: heed has it on Linux only");
}
SharedMemory::SharedMemory(const std::string&, std::size_t bytes) : SharedMemory(bytes) {}
SharedMemory::~SharedMemory() = default;
void SharedMemory::forget_name() {}

}  // namespace HEED_NAMESPACE
#endif

namespace HEED_NAMESPACE {

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : name_(std::move(other.name_)),
      named_(std::exchange(other.named_, -1)),
      bytes_(std::exchange(other.bytes_, {})) {}

}  // namespace HEED_NAMESPACE
