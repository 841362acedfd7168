// SPDX-License-Identifier: Apache-2.0
#include "rank_processes.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "heed/error.hpp"
#if defined(HEED_TOOL_HAS_MPI)
#include <sys/wait.h>
#include <unistd.h>

#include "heed/mpi.hpp"
#endif

namespace heed::tool {
namespace {

constexpr const char* mark = "HEED_RANKS_OF_JOB";  // in the environment of those that start_ranks() started

#if defined(HEED_TOOL_HAS_MPI)
std::string find_mpirun() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path found = std::filesystem::path(folder) / "mpirun";
    if (access(found.c_str(), X_OK) == 0) return found;
  }
  throw Error(
      Error::unsupported,
      "--ranks: there is no mpirun in PATH; install Open MPI (Debian: openmpi-bin), or leave --ranks out");
}

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) throw Error(Error::unsupported, "--ranks: /proc/self/cmdline cannot be read");
  words[0] = std::filesystem::read_symlink("/proc/self/exe");
  return words;
}

int status_of(std::vector<std::string> command) {
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0)
    throw Error(Error::unsupported,
                std::string("--ranks: no process can be started: ") + std::strerror(errno));
  if (child == 0) {
    execv(words[0], words.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
#endif

}  // namespace

bool is_rank_process() { return std::getenv(mark) != nullptr; }

#if defined(HEED_TOOL_HAS_MPI)

void check_ranks(int ranks, bool share_processors, int threads) {
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (std::int64_t{ranks} * threads > processors && !share_processors)
    throw Error(Error::value,
                "--ranks: " + std::to_string(ranks) +
                    (threads == 1 ? " is" : ", with " + std::to_string(threads) + " threads each, are") +
                    " more than the processors there are: " + std::to_string(processors) +
                    "; say --oversubscribe to let them share");
  find_mpirun();
}

Status start_ranks(int ranks, bool share_processors) {
  check_ranks(ranks, share_processors);
  // Open MPI binds every process to a core, or to those of one socket, and its threads with it.
  std::vector<std::string> command{find_mpirun(), "--oversubscribe",    "--bind-to", "none",
                                   "-np",         std::to_string(ranks)};
  for (std::string& word : own_command_line()) command.push_back(std::move(word));
  setenv(mark, std::to_string(ranks).c_str(), 1);
  if (!isatty(STDOUT_FILENO)) setenv("NO_COLOR", "1", 1);  // mpirun gives its processes terminals
  const int status = status_of(std::move(command));
  if (status != 0)
    throw Error(Error::rank,
                "--ranks: mpirun ended with status " + std::to_string(status) + ", as it says above");
  return done;
}

std::unique_ptr<Messages> messages_of_processes(int ranks) {
  mpi::initialise_if_nobody_did();
  auto made = std::make_unique<mpi::MpiMessages>(MPI_COMM_WORLD, OnFault::ends_the_job);
  if (made->size() != ranks)
    throw Error(Error::rank, "--ranks: " + std::to_string(ranks) + " were asked for, and MPI started " +
                                 std::to_string(made->size()) +
                                 "; mpirun is not of the MPI that heed was built with");
  return made;
}

#else

void check_ranks(int, bool, int) {
  throw Error(Error::unsupported,
              "--ranks: this heed was built without MPI; configure it with -DHEED_MPI=ON");
}

Status start_ranks(int ranks, bool share_processors) {
  check_ranks(ranks, share_processors);
  return bad_input;  // which it has thrown
}

std::unique_ptr<Messages> messages_of_processes(int) {
  throw Error(Error::unsupported,
              "--ranks: this heed was built without MPI; configure it with -DHEED_MPI=ON");
}

#endif

Group group_of_processes(int ranks) { return Group(messages_of_processes(ranks)); }

}  // namespace heed::tool
