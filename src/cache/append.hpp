// SPDX-License-Identifier: Apache-2.0
// Tokens on their way into a cache: checked before anything is believed about them, then appended.
#pragma once
#include <cstdint>
#include <span>

#include "cache/state.hpp"
#include "cache/store.hpp"

namespace heed::cache {

// Tokens for sequences that follow each other: one per batch entry of k and v.
struct NewTokens {
  View k, v;
  std::int64_t first, sequences;
  const char* whose;                     // the sequences, in the sentence that refuses another batch
  std::span<const std::int64_t> counts;  // or empty: all tokens

  std::int64_t count(std::int64_t b) const {
    return counts.empty() ? k.shape.length : counts[static_cast<std::size_t>(b)];
  }
};

void check_tokens(const State&, const NewTokens&);

// Throws Error and leaves the state as it was, or appends everything.
void append_tokens(State&, const NewTokens&);

// Views that `read` writes a sequence of this length to.
void check_results(const State&, std::int64_t length, const MutableView& k, const MutableView& v);

// Head h of batch entry b from token t on.
Rows rows_of(const View&, std::int64_t b, std::int64_t h, std::int64_t t);

}  // namespace heed::cache
