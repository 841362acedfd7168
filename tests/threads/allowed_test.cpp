// SPDX-License-Identifier: Apache-2.0
// How many threads a process may use: its environment, its affinity, and what its cgroups say.
#include "threads/allowed.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "files/scratch_folder.hpp"

namespace heed {
namespace {

TEST(AllowedThreads, a_quota_is_rounded_up_to_whole_cpus) {
  EXPECT_EQ(threads::quota_in("max 100000\n"), 0);
  EXPECT_EQ(threads::quota_in("200000 100000\n"), 2);
  EXPECT_EQ(threads::quota_in("150000 100000\n"), 2);
  EXPECT_EQ(threads::quota_in("1000 100000\n"), 1);
  EXPECT_EQ(threads::quota_in("200001 100000"), 3);
}

TEST(AllowedThreads, any_other_text_is_no_quota) {
  for (const char* text : {"", " ", "\n", "max", "200000", "200000 ", "200000\t100000", "0 100000",
                           "100000 0", "-1 100000", "100000 -1", "nan 100000", "inf 1", "1e9 1",
                           "99999999999999999999999999 1", "1 99999999999999999999999999", "0x10 1"})
    EXPECT_EQ(threads::quota_in(text), 0) << '"' << text << '"';
  EXPECT_EQ(threads::quota_in({"100000\0 100000", 14}), 0);
  EXPECT_EQ(threads::quota_in("9223372036854775807 1"), 2147483647);
}

class Cgroups : public test::ScratchFolder {
 protected:
  static void give(const std::filesystem::path& folder, const char* cpu_max) {
    std::filesystem::create_directories(folder);
    test::put_file(folder / "cpu.max", cpu_max);
  }
};

TEST_F(Cgroups, the_least_quota_on_the_way_to_the_root_counts) {
  give("a/b/c", "500000 100000");
  give("a/b", "max 100000");
  give("a", "300000 100000");
  EXPECT_EQ(threads::cgroup_quota(".", "0::/a/b/c\n"), 3);
  EXPECT_EQ(threads::cgroup_quota(".", "12:cpu:/x\n0::/a/b/c"), 3);
  EXPECT_EQ(threads::cgroup_quota(".", "0::/\n"), 0);
  give(".", "200000 100000");
  EXPECT_EQ(threads::cgroup_quota(".", "0::/a/b/c\n"), 2);
  EXPECT_EQ(threads::cgroup_quota(".", ""), 2);
}

TEST_F(Cgroups, hostile_membership_is_none) {
  give("a", "300000 100000");
  for (const std::string text : {"0::a", "0::", "0:", "a", "::::", "\n\n\n", "1::/a", "0:cpu:/a",
                                 "0::/b/../../..", "0::/b//", "0::///"})
    EXPECT_EQ(threads::cgroup_quota("./b", text), 0) << text;
  EXPECT_EQ(threads::cgroup_quota(".", "0::/" + std::string(100000, 'a')), 0);
}

TEST(AllowedThreads, the_environment_has_the_first_word_and_nonsense_there_none) {
  setenv("HEED_NUM_THREADS", "3", 1);
  EXPECT_EQ(threads::allowed_threads(), 3);
  unsetenv("HEED_NUM_THREADS");
  const int machine = threads::allowed_threads();
  EXPECT_GE(machine, 1);
  EXPECT_EQ(threads::threads_variable_fault(), "");
  testing::internal::CaptureStderr();
  for (const std::string nonsense : {"0", "-4", "many", "3x", "1000000"}) {
    setenv("HEED_NUM_THREADS", nonsense.c_str(), 1);
    EXPECT_EQ(threads::allowed_threads(), machine) << nonsense;
    EXPECT_EQ(threads::threads_variable_fault(),
              "HEED_NUM_THREADS: '" + nonsense + "' is no whole number in [1, 4096], and is ignored");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "heed: warning: HEED_NUM_THREADS: '0' is no whole number in [1, 4096], and is ignored\n");
  unsetenv("HEED_NUM_THREADS");
}

}  // namespace
}  // namespace heed
