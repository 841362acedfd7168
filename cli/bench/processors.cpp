// SPDX-License-Identifier: Apache-2.0
// See processors.hpp.
#include "bench/processors.hpp"

#ifdef __linux__
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#endif

namespace heed::tool {

#ifdef __linux__
namespace {

// "7 (name) R 1 ...", where a name may have blanks and brackets; the processor is the 39th word. -1: the
// thread has ended meanwhile.
int processor_of(const std::filesystem::path& thread) {
  std::string line;
  std::getline(std::ifstream(thread / "stat"), line);
  std::istringstream words(line.substr(line.rfind(')') + 1));
  std::string word;
  for (int number = 3; number < 39; ++number) words >> word;
  int processor = -1;
  return words >> processor ? processor : -1;
}

}  // namespace

std::vector<int> processors_of_others() {
  std::vector<int> found;
  std::error_code unreadable;
  const auto own = std::filesystem::read_symlink("/proc/thread-self", unreadable).filename();
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", unreadable)) {
    if (thread.path().filename() == own) continue;
    const int processor = processor_of(thread.path());
    if (processor >= 0 && processor != sched_getcpu() && std::ranges::count(found, processor) == 0)
      found.push_back(processor);
  }
  return found;
}

void begin_on(int processor) {
  cpu_set_t allowed, one;
  CPU_ZERO(&one);
  if (processor < 0 || processor >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return;
  CPU_SET(processor, &one);
  if (CPU_ISSET(processor, &allowed) && sched_setaffinity(0, sizeof one, &one) == 0)
    sched_setaffinity(0, sizeof allowed, &allowed);
}
#else
std::vector<int> processors_of_others() { return {}; }
void begin_on(int) {}
#endif

}  // namespace heed::tool
