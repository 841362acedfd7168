// SPDX-License-Identifier: Apache-2.0
// See system.hpp: Linux and macOS.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "system.hpp"
#ifdef __linux__
#include <sys/auxv.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

extern char** environ;

namespace heed::tool {

bool is_terminal(Output output) {
  return isatty(output == Output::standard ? STDOUT_FILENO : STDERR_FILENO) != 0;
}

void write_error(std::string_view text) {
  // Who cannot be told is not told.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void set_environment(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

int process_id() { return getpid(); }

int logical_cpus() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

std::size_t physical_memory_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

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

ArmExtensions arm_extensions() {
#if defined(__linux__) && defined(__aarch64__)
  // Named here because older headers lack them.
  constexpr unsigned long dotprod = 1ul << 20;  // of AT_HWCAP
  constexpr unsigned long i8mm = 1ul << 13;     // of AT_HWCAP2
  return {.dotprod = (getauxval(AT_HWCAP) & dotprod) != 0, .i8mm = (getauxval(AT_HWCAP2) & i8mm) != 0};
#elif defined(__APPLE__)
  const auto has = [](const char* name) {
    int value = 0;
    std::size_t bytes = sizeof value;
    return sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 && value != 0;
  };
  return {.dotprod = has("hw.optional.arm.FEAT_DotProd"), .i8mm = has("hw.optional.arm.FEAT_I8MM")};
#else
  return {};
#endif
}

}  // namespace heed::tool
