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

// One Document mask: the document of every key and of every query, and how many numbers further those of the
// next sequence begin: 0 where all share them.
struct DocumentIds {
  const std::int32_t* keys = nullptr;
  std::int64_t keys_step = 0;
  const std::int32_t* queries = nullptr;  // null: a query is of the document of the key it stands beside
  std::int64_t queries_step = 0;
  bool queries_are_last =
      false;  // the last query stands beside the last key; else the first beside the first
};

// ALiBi's slopes, one per query head; null: none. Those of the next sequence begin `step` further: 0 where
// all share them.
struct AlibiSlopes {
  const float* of_heads = nullptr;
  std::int64_t step = 0;
  bool queries_are_last = false;  // as in DocumentIds
};

}  // namespace heed::problem

namespace heed {
using problem::AlibiSlopes, problem::DocumentIds, problem::Gap, problem::Sequence;
}

// Which scores a call writes: plain data that kernels of every instruction set and device read.

namespace heed::problem {

enum class ScoreStage : std::uint8_t { none, raw, softcapped, biased };  // S4

}  // namespace heed::problem

namespace heed {
using problem::ScoreStage;
}
