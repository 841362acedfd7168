// SPDX-License-Identifier: Apache-2.0
// See machine.hpp.
#include "machine.hpp"

#include <fmt/core.h>

#include <array>
#include <filesystem>
#include <fstream>
#ifdef __linux__
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <system_error>
#endif

namespace heed::tool {
namespace {

// The value of the first "key : value" line of /proc/cpuinfo, or "".
std::string cpu_info(const std::string& key) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::string first_word(const std::filesystem::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

// "1024K", "32M" or "65536".
std::size_t parse_size(const std::string& text) {
  std::size_t digits = 0;
  const std::size_t number = text.empty() ? 0 : std::stoul(text, &digits);
  if (digits >= text.size()) return number;
  return number << (text[digits] == 'G' ? 30 : text[digits] == 'M' ? 20 : 10);
}

}  // namespace

// Arm's cores give numbers where others give a name.
std::string cpu_model() {
  const std::string name = cpu_info("model name");
  if (!name.empty()) return name;
  struct Part {
    const char *number, *name;
  };
  constexpr std::array<Part, 9> arm_parts = {{{"0xd03", "Cortex-A53"},
                                              {"0xd08", "Cortex-A72"},
                                              {"0xd0b", "Cortex-A76"},
                                              {"0xd0c", "Neoverse N1"},
                                              {"0xd40", "Neoverse V1"},
                                              {"0xd49", "Neoverse N2"},
                                              {"0xd4f", "Neoverse V2"},
                                              {"0xd83", "Neoverse V3AE"},
                                              {"0xd84", "Neoverse V3"}}};
  const std::string implementer = cpu_info("CPU implementer"), part = cpu_info("CPU part");
  for (const Part& known : arm_parts)
    if (implementer == "0x41" && part == known.number) return fmt::format("Arm {}", known.name);
  return part.empty() ? "unknown" : fmt::format("implementer {}, part {}", implementer, part);
}

Caches find_caches() {
  Caches caches;
  const std::filesystem::path folder = "/sys/devices/system/cpu/cpu0/cache";
  for (int index = 0; std::filesystem::exists(folder / ("index" + std::to_string(index))); ++index) {
    const std::filesystem::path cache = folder / ("index" + std::to_string(index));
    if (first_word(cache / "type") == "Instruction") continue;
    const std::string level = first_word(cache / "level");
    if (level == "2") caches.l2 = parse_size(first_word(cache / "size"));
    if (level == "3") caches.l3 = parse_size(first_word(cache / "size"));
  }
#ifdef _SC_LEVEL2_CACHE_SIZE
  const auto system_value = [](int name) { return static_cast<std::size_t>(std::max(sysconf(name), 0l)); };
  if (caches.l2 == 0) caches.l2 = system_value(_SC_LEVEL2_CACHE_SIZE);
  if (caches.l3 == 0) caches.l3 = system_value(_SC_LEVEL3_CACHE_SIZE);
#endif
  return caches;
}

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
