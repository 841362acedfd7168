// SPDX-License-Identifier: Apache-2.0
// Which rows a sequence has and which keys its queries may see: plain data that kernels of every instruction
// set read.
#pragma once
#include <cstdint>

namespace heed::problem {

// One batch entry of the call, or one sequence of a packed one.
struct Sequence {
  std::int64_t queries = 0, keys = 0;
  std::int64_t first_query = 0, first_key = 0;  // where its rows begin in the views; not 0 when packed
  std::int64_t key_count = 0;                   // what KeyLengths leaves of the keys
  std::int64_t in_cache = 0;                    // its number there
  // Causal and Window: query i sees no key in [front, i + first_offset) and none from i + end_offset on.
  // Offsets are clamped to +-(queries + keys).
  std::int64_t first_offset = 0, end_offset = 0;
};

// One more window whose `front` is not the problem's: query i sees no key in [front, i + first_offset).
struct Gap {
  std::int64_t front = 0, first_offset = 0;
};

}  // namespace heed::problem

namespace heed {
using problem::Gap, problem::Sequence;
}
