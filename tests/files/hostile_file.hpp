// SPDX-License-Identifier: Apache-2.0
// A file that must be refused, and the sentence it must be refused with.
#pragma once
#include <string>
#include <vector>

#include "scratch_folder.hpp"

namespace heed::test {

struct HostileFile {
  std::string bytes;
  const char* sentence;
};

template <typename Read>
int count_failures(const std::vector<HostileFile>& files, Read read) {
  int failures = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    put_file("x", files[i].bytes);
    const std::string found = refusal([&] { read("x"); });
    if (found == files[i].sentence) continue;
    ADD_FAILURE() << "file " << i << "\nmust say: " << files[i].sentence << "\n    says: " << found;
    ++failures;
  }
  return failures;
}

}  // namespace heed::test
