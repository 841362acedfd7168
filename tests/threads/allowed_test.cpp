// SPDX-License-Identifier: Apache-2.0
// How many threads a process may use: its environment, its affinity, and what its cgroups say.
#include "cpu/threads/allowed.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace heed {
namespace {

TEST(AllowedThreads, the_environment_has_the_first_word_and_nonsense_there_none) {
  setenv("HEED_NUM_THREADS", "3", 1);
  EXPECT_EQ(cpu::allowed_threads(), 3);
  unsetenv("HEED_NUM_THREADS");
  const int machine = cpu::allowed_threads();
  EXPECT_GE(machine, 1);
  for (const char* nonsense : {"0", "-4", "many", "1000000"}) {
    setenv("HEED_NUM_THREADS", nonsense, 1);
    EXPECT_EQ(cpu::allowed_threads(), machine) << nonsense;
  }
  unsetenv("HEED_NUM_THREADS");
}

}  // namespace
}  // namespace heed
