// SPDX-License-Identifier: Apache-2.0
// A problem over a cache as one over plain keys and values, copied out of the pages: how the reference sees a
// cache, and every kernel one whose keys are rotated when they are read.
#pragma once
#include "backend/backend.hpp"
#include "problem/problem.hpp"

namespace heed::api {

struct GatheredCache {
  GatheredCache(const Problem&, const Backend&);
  GatheredCache(const GatheredCache&) = delete;
  GatheredCache& operator=(const GatheredCache&) = delete;

  Problem problem;  // the one given, where it reads no cache

 private:
  Memory keys_, values_;
};

}  // namespace heed::api
