// SPDX-License-Identifier: Apache-2.0
// Memory that is kept between calls: never shared, never too small, and not for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "threads/memory.hpp"

namespace heed::threads {
namespace {

constexpr std::size_t mebi = std::size_t{1} << 18;  // floats in a MiB

TEST(ReusedMemory, is_taken_again_by_the_next_call_of_its_size) {
  const float* first = take_memory(3 * mebi).get();
  EXPECT_EQ(take_memory(3 * mebi).get(), first);
  EXPECT_EQ(take_memory(3 * mebi - 1000).get(), first);
}

TEST(ReusedMemory, that_is_too_small_or_more_than_twice_too_large_is_left_alone) {
  const float* kept = take_memory(5 * mebi).get();
  EXPECT_NE(take_memory(5 * mebi + 1).get(), kept);
  EXPECT_NE(take_memory(5 * mebi / 2 - 1000).get(), kept);
}

TEST(ReusedMemory, of_every_size_is_on_a_line_and_belongs_to_one_holder_at_a_time) {
  const auto hold = [](float mark) {
    int wrong = 0;
    for (int round = 0; round < 20; ++round) {
      std::vector<ReusedMemory> held;
      std::vector<std::size_t> sizes;
      for (std::size_t n = 0; n < 12; ++n) {
        sizes.push_back(1 + n * 7001 + static_cast<std::size_t>(round) * 911);
        held.push_back(take_memory(sizes[n]));
        wrong += reinterpret_cast<std::uintptr_t>(held[n].get()) % 64 != 0 ? 1 : 0;
        std::fill_n(held[n].get(), sizes[n], mark + static_cast<float>(n));
      }
      for (std::size_t n = 0; n < held.size(); ++n)
        wrong += std::count(held[n].get(), held[n].get() + sizes[n], mark + static_cast<float>(n)) !=
                         static_cast<std::ptrdiff_t>(sizes[n])
                     ? 1
                     : 0;
    }
    return wrong;
  };
  int other = -1;
  std::thread beside([&] { other = hold(1000); });
  EXPECT_EQ(hold(0), 0);
  beside.join();
  EXPECT_EQ(other, 0);
}

TEST(ReusedMemory, of_the_last_call_is_kept_however_much_others_took_before) {
  {
    std::vector<ReusedMemory> held;
    for (int n = 0; n < 20; ++n) held.push_back(take_memory(3 * mebi));
  }
  const float* small = take_memory(mebi).get();
  EXPECT_EQ(take_memory(mebi).get(), small);
}

TEST(ReusedMemory, of_more_than_256_MiB_is_given_back) {
  ReusedMemory large = take_memory(257 * mebi);
  const std::size_t bytes = large.get_deleter().bytes;
  large.reset();
  std::vector<ReusedMemory> held;  // had it been kept, this would be all of it
  held.push_back(take_memory(140 * mebi));
  EXPECT_LT(held[0].get_deleter().bytes, bytes);
}

}  // namespace
}  // namespace heed::threads
