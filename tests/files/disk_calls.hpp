// SPDX-License-Identifier: Apache-2.0
// Which of the calls that make a save durable were made, in which order; one of them can be made to fail.
#pragma once
#include <string>
#include <vector>

namespace heed::test {

// Watches while it lives. The calls are "fsync file", "rename" and "fsync folder"; `failing` answers EIO. It
// may also be "open without a name", which is not listed and answers as a file system that has no such files.
class DiskCalls {
 public:
  explicit DiskCalls(const std::string& failing = "");
  ~DiskCalls();
  DiskCalls(const DiskCalls&) = delete;
  DiskCalls& operator=(const DiskCalls&) = delete;

  std::vector<std::string> made() const;
};

}  // namespace heed::test
