// SPDX-License-Identifier: Apache-2.0
// See staged_files.hpp.
#include "staged_files.hpp"

#include <fmt/core.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "heed/error.hpp"
#include "system.hpp"

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

// Names of files that lie beside their places, for a signal handler: it may neither allocate nor lock.
class NamesForHandler {
 public:
  void add(const std::string& name) {
    for (auto& place : names_)
      if (place[0] == 0 && name.size() < place.size()) {
        std::memcpy(&place[1], name.c_str() + 1, name.size());
        place[0] = name[0];  // last, so that no half of a name is ever read
        return;
      }
  }
  void forget(const std::string& name) {
    for (auto& place : names_)
      if (name == place.data()) place[0] = 0;
  }
  void remove_files() const {
    for (const auto& place : names_)
      if (place[0] != 0) std::remove(place.data());
  }

 private:
  std::array<std::array<char, 4096>, 16> names_{};  // no command writes more files than that
};
NamesForHandler beside_their_places;

// Leaves nothing beside the targets, and ends the process as the signal would have.
void end_by(int signal) {
  beside_their_places.remove_files();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

#ifdef SIGHUP
constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};
#else
constexpr int signals[] = {SIGINT, SIGTERM};
#endif

void clean_up_when_interrupted() {
  for (const int signal : signals)
    if (const auto before = std::signal(signal, end_by); before != SIG_DFL) std::signal(signal, before);
}

}  // namespace

StagedFiles::~StagedFiles() {
  std::error_code ignored;  // a leftover beside the target is all that can go wrong here
  for (const File& file : files_) {
    if (file.written) fs::remove(file.beside, ignored);
    beside_their_places.forget(file.beside.string());
  }
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
  const fs::path beside = target.string() + fmt::format(".part-{}", process_id());
  clean_up_when_interrupted();
  files_.push_back({.flag = flag, .path = path, .target = target, .place = place, .beside = beside});
}

void StagedFiles::write(const std::string& path, const std::function<void(const fs::path&)>& write) {
  for (File& file : files_)
    if (file.path == path) {
      beside_their_places.add(file.beside.string());
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
    beside_their_places.forget(file.beside.string());
    file.written = false;
  }
}

}  // namespace heed::tool
