// SPDX-License-Identifier: Apache-2.0
// A problem over a cache as one over plain keys and values, copied out of the pages: how the reference sees a
// cache, and every kernel one whose keys are turned when they are read.
#pragma once
#include <cstddef>
#include <vector>

#include "problem/problem.hpp"

namespace heed::reference {

struct GatheredCache {
  explicit GatheredCache(const Problem&);
  GatheredCache(const GatheredCache&) = delete;
  GatheredCache& operator=(const GatheredCache&) = delete;

  Problem problem;  // the one given, where it reads no cache

 private:
  std::vector<std::byte> keys_, values_;
};

}  // namespace heed::reference
