// SPDX-License-Identifier: Apache-2.0
// The keys of a split as they travel: chunks in the order of the keys, each in pieces from the ranks that
// have them to all that share their heads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "heed/distributed.hpp"
#include "softmax/state.hpp"

namespace heed::ranks {

// Part n of `parts` nearly equal ones.
inline Stretch part(std::int64_t length, std::int64_t parts, std::int64_t n) {
  const std::int64_t first = length / parts * n + std::min(n, length % parts);
  return {first, length / parts + (n < length % parts ? 1 : 0)};
}

// Streams are given what every row folds at once: so they hold nothing back, and copy nothing.
using softmax::chunk_keys;

// Keys of one chunk.
struct Piece {
  int owner;
  std::int64_t first, length;  // among the keys
  std::int64_t row;            // of the owner's k and v
};

struct HeadGroup {
  std::int64_t first_kv_head, kv_heads;
  std::vector<int> members;
  std::vector<std::vector<Piece>> chunks;  // each in the order of its keys
};

// Throws Error where a split leaves something out or has it twice.
std::vector<HeadGroup> head_groups(const Split&);

}  // namespace heed::ranks
