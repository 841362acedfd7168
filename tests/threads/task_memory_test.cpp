// SPDX-License-Identifier: Apache-2.0
// The memory of a call's tasks: what its layout names lies apart, each on a line of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

using Bytes = std::pair<std::uintptr_t, std::uintptr_t>;  // [begin, end)

template <class T>
Bytes bytes_of(const T* first, std::size_t count) {
  const auto begin = reinterpret_cast<std::uintptr_t>(first);
  return {begin, begin + count * sizeof(T)};
}

TEST(TaskMemory, has_every_region_on_a_line_of_its_own) {
  Layout layout;
  const auto flags = layout.share<char>(3);
  const auto numbers = layout.share<double>(5);
  const auto none = layout.share<float>(0);
  const auto scratch = layout.give_each_slot<float>(17);
  const auto words = layout.give_each_slot<std::uint16_t>(1);
  TaskMemory memory(2, layout);
  const TaskMemory::Slot a(memory), z(memory);
  EXPECT_NE(a.number(), z.number());
  EXPECT_EQ(memory[flags].size(), 3u);
  EXPECT_EQ(memory[numbers].size(), 5u);
  EXPECT_TRUE(memory[none].empty());

  std::vector<Bytes> regions{bytes_of(memory[flags].data(), 3), bytes_of(memory[numbers].data(), 5)};
  for (const TaskMemory::Slot* slot : {&a, &z}) {
    regions.push_back(bytes_of((*slot)[scratch], 17));
    regions.push_back(bytes_of((*slot)[words], 1));
  }
  std::sort(regions.begin(), regions.end());
  for (std::size_t n = 0; n < regions.size(); ++n) {
    EXPECT_EQ(regions[n].first % 64, 0u);
    if (n > 0) {
      EXPECT_LE(regions[n - 1].second, regions[n].first);
    }
  }
}

TEST(TaskMemory, of_a_slot_that_was_given_back_is_given_again) {
  Layout layout;
  const auto scratch = layout.give_each_slot<float>(40);
  TaskMemory memory(1, layout);
  const float* const first = TaskMemory::Slot(memory)[scratch];
  const float* const second = TaskMemory::Slot(memory)[scratch];
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace heed::cpu
