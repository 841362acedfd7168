// SPDX-License-Identifier: Apache-2.0
// Compiled by zig's clang and run under Wine (docs/building.md).
#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <share.h>
#include <sys/stat.h>
#include <windows.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "system/system.hpp"

namespace heed::system {
namespace {

HANDLE handle_of(const Descriptor& file) { return reinterpret_cast<HANDLE>(_get_osfhandle(file.get())); }

FileStatus status_of(const struct _stat64& found) {
  constexpr unsigned permissions = _S_IREAD | _S_IWRITE;
  return {.is_regular = (found.st_mode & _S_IFMT) == _S_IFREG,
          .size = found.st_size,
          .permissions = found.st_mode & permissions};
}

// Windows' own functions say why by a number of their own.
bool succeeded(BOOL result) {
  if (result) return true;
  switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
      errno = ENOENT;
      break;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION:
    case ERROR_LOCK_VIOLATION:
      errno = EACCES;
      break;
    case ERROR_DISK_FULL:
    case ERROR_HANDLE_DISK_FULL:
      errno = ENOSPC;
      break;
    default:
      errno = EIO;
  }
  return false;
}

// What one call takes.
DWORD at_once(std::size_t count) {
  return static_cast<DWORD>(std::min<std::size_t>(count, std::numeric_limits<int>::max()));
}

}  // namespace

bool Descriptor::close() { return !is_open() || ::_close(std::exchange(number_, -1)) == 0; }

Descriptor open_to_read(const std::filesystem::path& path) {
  return Descriptor(::_wopen(path.c_str(), _O_RDONLY | _O_BINARY | _O_NOINHERIT));
}

bool examine(const Descriptor& file, FileStatus& status) {
  struct _stat64 found{};
  if (::_fstat64(file.get(), &found) != 0) return false;
  status = status_of(found);
  return true;
}

std::ptrdiff_t read_some(const Descriptor& file, std::int64_t offset, void* into, std::size_t count) {
  OVERLAPPED place{};
  place.Offset = static_cast<DWORD>(offset);
  place.OffsetHigh = static_cast<DWORD>(offset >> 32);
  DWORD got = 0;
  if (ReadFile(handle_of(file), into, at_once(count), &got, &place)) return static_cast<std::ptrdiff_t>(got);
  if (GetLastError() == ERROR_HANDLE_EOF) return 0;
  succeeded(FALSE);
  return -1;
}

std::ptrdiff_t write_some(const Descriptor& file, const void* from, std::size_t count) {
  DWORD put = 0;
  return succeeded(WriteFile(handle_of(file), from, at_once(count), &put, nullptr))
             ? static_cast<std::ptrdiff_t>(put)
             : -1;
}

// Windows has one permission, to write, and lets nobody rename onto a file without it: a new file has it.
bool set_permissions(const Descriptor&, unsigned) { return true; }

bool flush(const Descriptor& file) { return ::_commit(file.get()) == 0; }

bool Folder::open(const std::filesystem::path& path) {
  std::error_code unreadable;
  path_ = std::filesystem::absolute(path, unreadable);
  if (!unreadable && std::filesystem::is_directory(path_, unreadable)) return true;
  errno = ENOENT;
  return false;
}

bool Folder::examine(const std::string& name, FileStatus& status) const {
  struct _stat64 found{};
  if (::_wstat64((path_ / name).c_str(), &found) != 0) return false;
  status = status_of(found);
  return true;
}

Descriptor Folder::create(const std::string& name) const {
  constexpr int flags = _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT;
  return Descriptor(::_wopen((path_ / name).c_str(), flags, _S_IREAD | _S_IWRITE));
}

Descriptor Folder::create_without_name() const { return {}; }

bool Folder::give_name(const Descriptor&, const std::string&) const {
  errno = ENOSYS;
  return false;
}

bool Folder::rename(const std::string& from, const std::string& to) const {
  return succeeded(MoveFileExW((path_ / from).c_str(), (path_ / to).c_str(),
                               MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH));
}

void Folder::remove(const std::string& name) const { ::_wunlink((path_ / name).c_str()); }

bool Folder::flush() const { return true; }  // rename() has written through

int process_id() { return ::_getpid(); }

void in_forked_children(void (*)()) {}  // there are none

void prefer_large_pages(void*, std::size_t) {}  // they need a privilege that programs do not have

// Windows lends them from its version 11 on without being asked; whether it did, XCR0 says: bits 17 and 18.
bool borrow_tile_registers() {
#ifdef __x86_64__
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> 17 & 3) == 3;
#else
  return false;
#endif
}

bool has_arm_bf16() { return false; }  // Windows does not say

}  // namespace heed::system
