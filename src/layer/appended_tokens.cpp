// SPDX-License-Identifier: Apache-2.0
#include "layer/appended_tokens.hpp"

#include "cache/state.hpp"
#include "cache/tokens.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {
namespace {

// Another call may have come in since.
void check_unchanged(const cache::State& state, const GrowingSequences& sequences) {
  for (std::size_t b = 0; b < sequences.numbers.size(); ++b) {
    const std::int64_t length = state.at(sequences.numbers[b]).length;
    if (length != sequences.lengths[b])
      throw refusal(Error::busy, "cache: sequence ", sequences.numbers[b], " had ", sequences.lengths[b],
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

// Those that have got their tokens and those that have not.
void take_back(cache::State& state, const GrowingSequences& sequences) noexcept {
  for (std::size_t b = 0; b < sequences.numbers.size(); ++b)
    state.shorten(state.sequences[static_cast<std::size_t>(sequences.numbers[b])], sequences.lengths[b]);
}

void append_one_by_one(cache::State& state, const GrowingSequences& sequences, const View& k, const View& v) {
  try {
    for (std::size_t b = 0; b < sequences.numbers.size(); ++b)
      cache::append_tokens(state, {entry(k, b), entry(v, b), sequences.numbers[b], 1, "the one sequence",
                                   std::span(sequences.counts).subspan(b, 1)});
  } catch (...) {
    take_back(state, sequences);
    throw;
  }
}

void append(cache::State& state, const GrowingSequences& sequences, const View& k, const View& v) {
  check_unchanged(state, sequences);
  if (!follow_each_other(sequences.numbers)) return append_one_by_one(state, sequences, k, v);
  const std::int64_t first = sequences.numbers.empty() ? 0 : sequences.numbers[0];
  cache::append_tokens(state, {k, v, first, std::ssize(sequences.numbers), "x.batch", sequences.counts});
}

}  // namespace

AppendedTokens::AppendedTokens(KvCache& cache, const GrowingSequences& sequences, const View& k,
                               const View& v)
    : state_(cache::Access::state(cache)), sequences_(sequences) {
  state_.use.begin_writing("layer");
  try {
    append(state_, sequences, k, v);
  } catch (...) {
    state_.use.end_writing();
    throw;
  }
  state_.use.writer_becomes_reader();
}

AppendedTokens::~AppendedTokens() {
  if (is_kept_) {
    state_.use.end_reading();
  } else {
    state_.use.reader_becomes_writer();
    take_back(state_, sequences_);
    state_.use.end_writing();
  }
}

}  // namespace heed::layer
