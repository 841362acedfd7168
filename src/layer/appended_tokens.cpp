// SPDX-License-Identifier: Apache-2.0
#include "layer/appended_tokens.hpp"

#include <thread>

#include "cache/state.hpp"
#include "cache/tokens.hpp"
#include "refusal/refusal.hpp"

namespace heed {
namespace {

// Another call may have come in between.
void check_unchanged(const KvCache::State& state, const GrowingSequences& sequences) {
  for (std::size_t b = 0; b < sequences.numbers.size(); ++b) {
    const std::int64_t length = state.at(sequences.numbers[b]).length;
    if (length != sequences.lengths[b])
      throw refusal(Error::value, "cache: sequence ", sequences.numbers[b], " had ", sequences.lengths[b],
                    " tokens when the call began and has ", length, " now; another call changed it");
  }
}

bool follow_each_other(const std::vector<std::int64_t>& numbers) {
  for (std::size_t b = 1; b < numbers.size(); ++b)
    if (numbers[b] != numbers[b - 1] + 1) return false;
  return true;
}

View entry(const View& view, std::size_t b) {
  View one = view;
  one.data = static_cast<const float*>(view.data) + static_cast<std::int64_t>(b) * view.stride.batch;
  one.shape.batch = 1;
  return one;
}

// Only as long as nobody else has changed the sequence since.
void take_back(KvCache::State& state, const GrowingSequences& sequences, std::int64_t tokens) noexcept {
  for (std::size_t b = 0; b < sequences.numbers.size(); ++b) {
    auto& sequence = state.sequences[static_cast<std::size_t>(sequences.numbers[b])];
    if (!sequence.is_released && sequence.length == sequences.lengths[b] + tokens)
      state.shorten(sequence, sequences.lengths[b]);
  }
}

void append_one_by_one(KvCache::State& state, const GrowingSequences& sequences, const View& k,
                       const View& v) {
  try {
    for (std::size_t b = 0; b < sequences.numbers.size(); ++b)
      append_tokens(state, {entry(k, b), entry(v, b), sequences.numbers[b], 1, "the one sequence", {}});
  } catch (...) {
    take_back(state, sequences, k.shape.length);
    throw;
  }
}

// Readers come and go; nobody keeps a cache for long.
void begin_writing_when_free(CacheUse& use) noexcept {
  for (;;) {
    try {
      return use.begin_writing("layer");
    } catch (...) {
      std::this_thread::yield();
    }
  }
}

}  // namespace

AppendedTokens::AppendedTokens(KvCache& cache, const GrowingSequences& sequences, const View& k,
                               const View& v)
    : state_(const_cast<KvCache::State&>(cache.state())),  // the cache was given to be changed
      sequences_(sequences),
      tokens_(k.shape.length) {
  const Writing writing(state_.use, "layer");
  check_unchanged(state_, sequences);
  if (follow_each_other(sequences.numbers))
    append_tokens(state_, {k,
                           v,
                           sequences.numbers.empty() ? 0 : sequences.numbers[0],
                           std::ssize(sequences.numbers),
                           "x.batch",
                           {}});
  else
    append_one_by_one(state_, sequences, k, v);
}

AppendedTokens::~AppendedTokens() {
  if (is_kept_ || tokens_ == 0) return;
  begin_writing_when_free(state_.use);
  take_back(state_, sequences_, tokens_);
  state_.use.end_writing();
}

}  // namespace heed
