// SPDX-License-Identifier: Apache-2.0
// See staged_files.hpp.
#include "staged_files.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <system_error>

#include "heed/error.hpp"

namespace heed::tool {

namespace fs = std::filesystem;

namespace {

// Where a chain of links ends, whether or not a file is there yet: a link stays a link.
fs::path follow_links(fs::path path) {
  constexpr int longest_chain = 40;  // as the kernel counts
  std::error_code unreadable;        // then the write itself will say why
  for (int i = 0; i < longest_chain && fs::is_symlink(path, unreadable); ++i)
    path = path.parent_path() / fs::read_symlink(path, unreadable);
  return path;
}

}  // namespace

StagedFiles::~StagedFiles() {
  std::error_code ignored;  // a leftover beside the target is all that can go wrong here
  for (const File& file : files_)
    if (file.written) fs::remove(file.beside, ignored);
}

void StagedFiles::expect(const std::string& flag, const std::string& path) {
  if (path.empty()) return;
  std::error_code unreadable;  // then the write itself will say why
  const fs::path target = follow_links(path);
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, unreadable))
    throw Error(Error::file, fmt::format("{}: there is no folder '{}'", flag, folder.string()));
  // Moving a file onto a device or a pipe would replace it.
  if (fs::exists(target, unreadable) && !fs::is_regular_file(target, unreadable))
    throw Error(Error::file, fmt::format("{}: '{}' is not a regular file", flag, path));
  const fs::path place = fs::weakly_canonical(fs::absolute(target, unreadable), unreadable);
  for (const File& other : files_)
    if (other.place == place)
      throw Error(Error::file, fmt::format("{}: '{}' is already what {} writes", flag, path, other.flag));
  const fs::path beside = target.string() + fmt::format(".part-{}", getpid());
  files_.push_back({.flag = flag, .path = path, .target = target, .place = place, .beside = beside});
}

void StagedFiles::write(const std::string& path, const std::function<void(const fs::path&)>& write) {
  for (File& file : files_)
    if (file.path == path) {
      write(file.beside);
      file.written = true;
    }
}

void StagedFiles::move_in() {
  for (File& file : files_) {
    if (!file.written) continue;
    std::error_code problem;
    fs::rename(file.beside, file.target, problem);
    if (problem)
      throw Error(Error::file,
                  fmt::format("{}: '{}' cannot be written: {}", file.flag, file.path, problem.message()));
    file.written = false;
  }
}

}  // namespace heed::tool
