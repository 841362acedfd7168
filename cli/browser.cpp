// SPDX-License-Identifier: Apache-2.0
// See browser.hpp.
#include "browser.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>

extern char** environ;

namespace heed::tool {

bool open_in_browser(const std::string& path) {
  std::string file = std::filesystem::absolute(path).string();
#ifdef __APPLE__
  std::string program = "open";
#else
  std::string program = "xdg-open";
#endif
  std::array<char*, 3> words = {program.data(), file.data(), nullptr};
  pid_t started = 0;
  if (posix_spawnp(&started, program.c_str(), nullptr, nullptr, words.data(), environ) != 0) return false;
  int status = 0;
  return waitpid(started, &status, 0) == started && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace heed::tool
