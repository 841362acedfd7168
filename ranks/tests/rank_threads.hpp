// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of the test: one function on each, and what each had to say.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "heed/group.hpp"

namespace heed::cases {

// work(group) on a thread of its own for each rank. Returns the sentence of what each threw, empty where
// nothing. An end is destroyed when its work is done.
inline std::vector<std::string> on_ranks(std::vector<Group> ends, const std::function<void(Group&)>& work) {
  std::vector<std::string> said(ends.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ends.size(); ++r)
    threads.emplace_back([&said, &work, r, end = std::make_shared<Group>(std::move(ends[r]))]() mutable {
      try {
        work(*end);
      } catch (const std::exception& e) {
        said[r] = e.what();
      }
      end.reset();
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

inline void expect_nothing_said(const std::vector<std::string>& said) {
  for (const std::string& sentence : said) EXPECT_EQ(sentence, "");
}

}  // namespace heed::cases
