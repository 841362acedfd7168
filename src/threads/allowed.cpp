// SPDX-License-Identifier: Apache-2.0
// No streams here: they ask the process for its locale, and whose library answers is not certain where heed
// is part of an extension module.
#include "threads/allowed.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <thread>

#include "system/system.hpp"
#ifdef __linux__
#include <sched.h>
#endif

namespace heed::threads {
namespace {

constexpr std::size_t longest_text = 1 << 16;  // of a file about cgroups; what is beyond is not read

// Empty where there is no such file.
std::string text_of(const std::string& path) {
  std::string text;
  const system::Descriptor file = system::open_to_read(path);
  if (!file.is_open()) return text;
  char part[4096];
  while (text.size() < longest_text) {
    const std::ptrdiff_t got = system::read_some(file, std::ssize(text), part, sizeof part);
    if (got <= 0) break;
    text.append(part, static_cast<std::size_t>(got));
  }
  return text;
}

// Takes a number above 0 from the beginning of a text; 0 where none is there or it does not fit.
std::int64_t take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc() ? std::max<std::int64_t>(number, 0) : 0;
}

constexpr std::size_t longest_quoted = 100;  // characters of somebody's variable in a sentence

// HEED_NUM_THREADS; empty where it is not set.
std::string threads_variable() {
  const char* const text = std::getenv("HEED_NUM_THREADS");
  return text ? text : "";
}

// The whole text as a number of threads; 0 where it is none.
int threads_in(std::string_view text) {
  const std::int64_t number = take_number(text);
  return text.empty() && number <= max_threads ? static_cast<int>(number) : 0;
}

int smaller_quota(int a, int b) { return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b); }

}  // namespace

int quota_in(std::string_view text) {
  const std::int64_t microseconds = take_number(text);
  if (text.empty() || text[0] != ' ') return 0;
  text.remove_prefix(1);
  const std::int64_t period = take_number(text);
  if (microseconds == 0 || period == 0) return 0;
  return static_cast<int>(
      std::min<std::int64_t>((microseconds - 1) / period + 1, std::numeric_limits<int>::max()));
}

// Version 2 has one line, "0::/a/b"; its quotas are in /a/b, /a and the root.
int cgroup_quota(const std::string& root, std::string_view membership) {
  int least = quota_in(text_of(root + "/cpu.max"));
  while (!membership.empty()) {
    const std::string_view line = membership.substr(0, membership.find('\n'));
    membership.remove_prefix(std::min(line.size() + 1, membership.size()));
    if (!line.starts_with("0::/")) continue;
    for (std::string_view path = line.substr(3); path.size() > 1; path = path.substr(0, path.rfind('/')))
      least = smaller_quota(least, quota_in(text_of(root + std::string(path) + "/cpu.max")));
  }
  return least;
}

std::string threads_variable_fault() {
  const std::string text = threads_variable();
  if (text.empty() || threads_in(text) != 0) return "";
  return "HEED_NUM_THREADS: '" + text.substr(0, longest_quoted) + "' is no whole number in [1, " +
         std::to_string(max_threads) + "], and is ignored";
}

void warn(const std::string& sentence) { std::fprintf(stderr, "heed: warning: %s\n", sentence.c_str()); }

int allowed_threads() {
  if (const int threads = threads_in(threads_variable())) return threads;
  static std::atomic<bool> has_warned = false;
  if (const std::string fault = threads_variable_fault(); !fault.empty() && !has_warned.exchange(true))
    warn(fault);
  int threads = static_cast<int>(std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) threads = CPU_COUNT(&set);
#endif
  if (const int limit = cgroup_quota("/sys/fs/cgroup", text_of("/proc/self/cgroup")))
    threads = std::min(threads, limit);
  return std::max(threads, 1);
}

}  // namespace heed::threads
