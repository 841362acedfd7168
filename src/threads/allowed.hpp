// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

namespace heed::threads {

// More than any machine has; beyond it a number is a mistake that would take every thread the system gives.
constexpr int max_threads = 4096;

// How many threads this process should use: HEED_NUM_THREADS, else what affinity and the cgroup's quota
// allow. Warns, once, where the variable says something that is no such number.
int allowed_threads();

// What is wrong with HEED_NUM_THREADS; empty where nothing is, or it is not set.
std::string threads_variable_fault();

// "heed: warning: ..." on stderr.
void warn(const std::string& sentence);

// A cgroup's quota in whole CPUs, rounded up, from the text of its cpu.max: "max 100000", "150000 100000". 0
// where there is none, and for any other text.
int quota_in(std::string_view cpu_max);

// The least quota of a process's cgroup and of those it is in; 0 where none has one. `membership` is the text
// of its /proc/self/cgroup, `root` the folder of all cgroups.
int cgroup_quota(const std::string& root, std::string_view membership);

}  // namespace heed::threads
