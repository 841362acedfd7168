// SPDX-License-Identifier: Apache-2.0
// See browser.hpp.
#include "browser.hpp"

#include <fcntl.h>
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
  posix_spawn_file_actions_t silent;  // what the program has to say, the tool says in its own words
  posix_spawn_file_actions_init(&silent);
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&silent, descriptor, "/dev/null", O_WRONLY, 0);
  pid_t started = 0;
  const int failed = posix_spawnp(&started, program.c_str(), &silent, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&silent);
  if (failed != 0) return false;
  int status = 0;
  return waitpid(started, &status, 0) == started && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace heed::tool
