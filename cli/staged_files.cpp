// SPDX-License-Identifier: Apache-2.0
// See staged_files.hpp.
#include "staged_files.hpp"

#include <fmt/core.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
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
volatile std::sig_atomic_t are_moved_in = 0;  // all files, or none

#ifdef SIGHUP
constexpr std::array ending_signals{SIGINT, SIGTERM, SIGHUP};
#else
constexpr std::array ending_signals{SIGINT, SIGTERM};
#endif

// Leaves nothing beside the targets, says what there is, and ends the process as the signal would have.
void end_by(int signal) {
  beside_their_places.remove_files();
  constexpr std::string_view none = "heed: interrupted; nothing was written\n",
                             all = "heed: interrupted; the files were written\n";
  const std::string_view sentence = are_moved_in != 0 ? all : none;
  if (is_terminal(Output::error)) write_error("\r\x1b[K");  // what progress has shown
  write_error(sentence);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

volatile std::sig_atomic_t put_off = 0;  // the signal that came meanwhile

// Puts those signals off while it lives.
class Undisturbed {
 public:
  Undisturbed() {
    for (std::size_t i = 0; i < before_.size(); ++i)
      before_[i] = std::signal(ending_signals[i], [](int signal) { put_off = signal; });
  }
  ~Undisturbed() {
    for (std::size_t i = 0; i < before_.size(); ++i) std::signal(ending_signals[i], before_[i]);
    const int signal = put_off;
    put_off = 0;
    if (signal != 0) std::raise(signal);
  }
  Undisturbed(const Undisturbed&) = delete;
  Undisturbed& operator=(const Undisturbed&) = delete;

 private:
  std::array<void (*)(int), ending_signals.size()> before_{};
};

void clean_up_when_interrupted() {
  for (const int signal : ending_signals)
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
  const Undisturbed meanwhile;
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
  are_moved_in = 1;
}

}  // namespace heed::tool
