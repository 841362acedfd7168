// SPDX-License-Identifier: Apache-2.0
// See caches.hpp.
#include "bench/caches.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace heed::tool {
namespace {

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

std::size_t system_value(int name) {
  const long value = sysconf(name);
  return value > 0 ? static_cast<std::size_t>(value) : 0;
}

}  // namespace

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
  if (caches.l2 == 0) caches.l2 = system_value(_SC_LEVEL2_CACHE_SIZE);
  if (caches.l3 == 0) caches.l3 = system_value(_SC_LEVEL3_CACHE_SIZE);
#endif
  return caches;
}

std::size_t physical_memory_bytes() { return system_value(_SC_PHYS_PAGES) * system_value(_SC_PAGESIZE); }

}  // namespace heed::tool
