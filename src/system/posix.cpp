// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "system/system.hpp"
#ifdef __linux__
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

namespace heed::system {
namespace {

FileStatus status_of(const struct stat& found) {
  constexpr mode_t permissions = 0777;
  return {.is_regular = S_ISREG(found.st_mode),
          .size = found.st_size,
          .permissions = static_cast<unsigned>(found.st_mode & permissions)};
}

// Where Linux shows an open file, by which one without a name is given one.
std::string link_of(const Descriptor& file) { return "/proc/self/fd/" + std::to_string(file.get()); }

}  // namespace

bool Descriptor::close() { return !is_open() || ::close(std::exchange(number_, -1)) == 0; }

Descriptor open_to_read(const std::filesystem::path& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

bool examine(const Descriptor& file, FileStatus& status) {
  struct stat found{};
  if (::fstat(file.get(), &found) != 0) return false;
  status = status_of(found);
  return true;
}

std::ptrdiff_t read_some(const Descriptor& file, std::int64_t offset, void* into, std::size_t count) {
  for (;;)
    if (const ssize_t got = ::pread(file.get(), into, count, offset); got >= 0 || errno != EINTR) return got;
}

std::ptrdiff_t write_some(const Descriptor& file, const void* from, std::size_t count) {
  for (;;)
    if (const ssize_t put = ::write(file.get(), from, count); put >= 0 || errno != EINTR) return put;
}

bool set_permissions(const Descriptor& file, unsigned permissions) {
  return ::fchmod(file.get(), static_cast<mode_t>(permissions)) == 0;
}

bool flush(const Descriptor& file) { return ::fsync(file.get()) == 0; }

bool Folder::open(const std::filesystem::path& path) {
  open_ = Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return open_.is_open();
}

bool Folder::examine(const std::string& name, FileStatus& status) const {
  struct stat found{};
  if (::fstatat(open_.get(), name.c_str(), &found, 0) != 0) return false;
  status = status_of(found);
  return true;
}

Descriptor Folder::create(const std::string& name) const {
  return Descriptor(::openat(open_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
}

Descriptor Folder::create_without_name() const {
#ifdef O_TMPFILE
  Descriptor file(::openat(open_.get(), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  if (file.is_open() && ::access(link_of(file).c_str(), F_OK) == 0) return file;
#endif
  return {};
}

bool Folder::give_name(const Descriptor& file, const std::string& name) const {
  return ::linkat(AT_FDCWD, link_of(file).c_str(), open_.get(), name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

bool Folder::rename(const std::string& from, const std::string& to) const {
  return ::renameat(open_.get(), from.c_str(), open_.get(), to.c_str()) == 0;
}

void Folder::remove(const std::string& name) const { ::unlinkat(open_.get(), name.c_str(), 0); }

// EINVAL: a file system that has no such call for folders.
bool Folder::flush() const { return ::fsync(open_.get()) == 0 || errno == EINVAL; }

int process_id() { return ::getpid(); }

void in_forked_children(void (*call)()) { pthread_atfork(nullptr, nullptr, call); }

void prefer_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::size_t large = std::size_t{2} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(memory),
             first = (address + large - 1) / large * large;
  const std::uintptr_t end = (address + bytes) / large * large;
  if (first < end)
    madvise(static_cast<unsigned char*>(memory) + (first - address), end - first, MADV_HUGEPAGE);
#endif
}

bool borrow_tile_registers() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

bool has_arm_bf16() {
#if defined(__linux__) && defined(__aarch64__)
  constexpr unsigned long bf16 = 1ul << 14;  // of AT_HWCAP2; named here because older headers lack it
  return (getauxval(AT_HWCAP2) & bf16) != 0;
#elif defined(__APPLE__)
  int has = 0;
  std::size_t bytes = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &bytes, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}

}  // namespace heed::system
