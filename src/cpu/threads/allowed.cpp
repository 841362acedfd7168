// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads/allowed.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace heed::cpu {
namespace {

// A cgroup's quota in whole CPUs, rounded up; 0 when there is none. cpu.max reads "max 100000" or "150000
// 100000".
int quota(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string allowed;
  double period = 0;
  if (!(file >> allowed >> period) || allowed == "max" || period <= 0) return 0;
  const double microseconds = std::strtod(allowed.c_str(), nullptr);
  return microseconds > 0 ? static_cast<int>((microseconds + period - 1) / period) : 0;
}

int cgroup_quota() {
  const std::string root = "/sys/fs/cgroup";
  std::ifstream membership("/proc/self/cgroup");
  int least = quota(root);
  for (std::string line; std::getline(membership, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/'))) {
      const int here = quota(root + path);
      if (here > 0) least = least > 0 ? std::min(least, here) : here;
    }
  }
  return least;
}

}  // namespace

int allowed_threads() {
  if (const char* text = std::getenv("HEED_NUM_THREADS")) {
    const long n = std::strtol(text, nullptr, 10);
    if (n >= 1 && n <= 4096) return static_cast<int>(n);
  }
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) threads = CPU_COUNT(&set);
  if (const int limit = cgroup_quota()) threads = std::min(threads, limit);
  return std::max(threads, 1);
}

}  // namespace heed::cpu
