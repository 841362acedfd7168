// SPDX-License-Identifier: Apache-2.0
// All of a command's output files or none: each is written beside its place, and all are moved in once every
// one is whole.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace heed::tool {

class StagedFiles {
 public:
  StagedFiles() = default;
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;
  ~StagedFiles();  // removes what was not moved in

  // Says that `flag` will write `path`; refuses at once what cannot work, before hours of computing. "" is no
  // file.
  void expect(const std::string& flag, const std::string& path);
  // Calls write(beside) for an expected path.
  void write(const std::string& path, const std::function<void(const std::filesystem::path&)>& write);
  void move_in();

 private:
  struct File {
    std::string flag, path;
    std::filesystem::path target, place, beside;  // `place` is the target without links or dots
    bool written = false;
  };
  std::vector<File> files_;
};

}  // namespace heed::tool
