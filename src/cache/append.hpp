// SPDX-License-Identifier: Apache-2.0
// Tokens on their way into a cache: checked before anything is believed about them, then appended.
#pragma once
#include <cstdint>
#include <span>

#include "cache/state.hpp"
#include "cache/store.hpp"

namespace heed::cache {

// Tokens for sequences: one per batch entry of k and v.
struct NewTokens {
  View k, v;
  Numbers numbers;
  const char* whose;                     // the sequences, in the sentence that refuses another batch
  std::span<const std::int64_t> counts;  // or empty: all tokens

  std::int64_t count(std::int64_t b) const {
    return counts.empty() ? k.shape.length : counts[static_cast<std::size_t>(b)];
  }
  // A sequence that is not listed and gets nothing may be anybody's, or released.
  bool changes(std::int64_t b) const { return !numbers.listed.empty() || count(b) > 0; }
};

// The sequences of new tokens while a call changes them: nobody else is at them.
class Changing {
 public:
  // Throws Error::busy while another call is at one of them; `call` begins the sentence.
  Changing(State&, const NewTokens&, const char* call);
  ~Changing();
  Changing(const Changing&) = delete;
  Changing& operator=(const Changing&) = delete;

  // Lets readers in, and itself reads on. No other call changes the sequences in between.
  void let_readers_in() noexcept;
  // Lets no more in, and waits until those that came have left.
  void wait_for_readers() noexcept;

 private:
  template <class Body>
  void for_each(const Body&) const;

  State& state_;
  const NewTokens& tokens_;  // which outlive this
  bool has_readers_ = false;
};

// Refuses views and counts that do not fit the cache, whatever its sequences hold.
void check_tokens(const State&, const NewTokens&);

// Of one who changes the sequences: throws Error and leaves the state as it was, or appends everything.
void append_tokens(State&, const NewTokens&);

// Views that `read` writes a sequence of this length to.
void check_results(const State&, std::int64_t length, const MutableView& k, const MutableView& v);

// Head h of batch entry b from token t on.
Rows rows_of(const View&, std::int64_t b, std::int64_t h, std::int64_t t);

}  // namespace heed::cache
