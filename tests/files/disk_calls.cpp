// SPDX-License-Identifier: Apache-2.0
// fsync, renameat and openat of this test program: they take the place of the C library's, note the call and
// pass it on.
#include "disk_calls.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace {

bool is_watching = false;  // one thread saves while it is
std::string call_that_fails;
std::vector<std::string> calls;

bool may_pass(const std::string& call) {
  if (!is_watching) return true;
  calls.push_back(call);
  if (call != call_that_fails) return true;
  errno = EIO;
  return false;
}

}  // namespace

extern "C" int fsync(int descriptor) {
  struct stat status{};
  ::fstat(descriptor, &status);
  if (!may_pass(S_ISDIR(status.st_mode) ? "fsync folder" : "fsync file")) return -1;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

extern "C" int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  if (!may_pass("rename")) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
}

extern "C" int openat(int folder, const char* path, int flags, ...) {
  mode_t mode = 0;
  const bool is_nameless = (flags & O_TMPFILE) == O_TMPFILE;
  if (is_nameless || (flags & O_CREAT) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  if (is_nameless && is_watching && call_that_fails == "open without a name") {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

namespace heed::test {

DiskCalls::DiskCalls(const std::string& failing) {
  call_that_fails = failing;
  calls.clear();
  is_watching = true;
}

DiskCalls::~DiskCalls() { is_watching = false; }

std::vector<std::string> DiskCalls::made() const { return calls; }

}  // namespace heed::test
