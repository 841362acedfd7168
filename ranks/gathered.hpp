// SPDX-License-Identifier: Apache-2.0
// What every rank says, on every rank.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "heed/group.hpp"

namespace heed::ranks {

// In the order of ranks. All have it only when all have said theirs.
template <class T>
std::vector<T> gathered(Group& group, const char* what, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  std::vector<std::span<std::byte>> into;
  for (T& one : all) into.push_back(std::as_writable_bytes(std::span(&one, 1)));
  group.gather(what, std::as_bytes(std::span(&own, 1)), into).wait();
  return all;
}

}  // namespace heed::ranks
