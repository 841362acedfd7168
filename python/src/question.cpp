// SPDX-License-Identifier: Apache-2.0
// Reads the arguments of attention().
#include "question.hpp"

#include <algorithm>

#include "views.hpp"

namespace heed::python {

Question::Question(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords, Caller caller)
    : has_arrays_(!k.is_none() || !v.is_none()),
      q_(read_tensor("q", q, Use::read, Where::any)),
      k_(has_arrays_ ? read_tensor("k", k, Use::read, Where::any) : Tensor{}),
      v_(has_arrays_ ? read_tensor("v", v, Use::read, Where::any) : Tensor{}),
      choices_(read_choices(caller, keywords)) {
  check_rank(q_, 2, 4);
  inputs_.q = view(q_);
  inputs_.sequences = entries_of(choices_.sequences);
  choices_.options.stream = current_stream(q_);
  queries_ = inputs_.q.shape.length;
  if (has_arrays_) take_arrays();
  if (choices_.cache)
    take_cache();
  else if (!has_arrays_)
    throw Error(Error::dtype, "k: None is not an array, and there is no cache in its place");
  else if (choices_.sequences)
    throw Error(Error::value, "sequences: given, but no cache whose sequences they are");
  if (choices_.query_lengths)
    take_padded();
  else if (choices_.query_starts.empty() && choices_.key_starts.empty())
    check_alignment(choices_, inputs_.q.shape.length, keys_);
  if (!choices_.query_starts.empty() || !choices_.key_starts.empty()) take_packed();
  check_columns(choices_, {queries_, keys_, inputs_.q.shape.heads});
}

Question::Question(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords, const Whole& whole)
    : has_arrays_(true),
      q_(read_tensor("q", q)),
      k_(read_tensor("k", k)),
      v_(read_tensor("v", v)),
      choices_(read_choices(whole.caller, keywords)) {
  check_rank(q_, 2, 4);
  inputs_.q = view(q_);
  take_arrays();
  keys_ = whole.keys;
  check_alignment(choices_, whole.queries, whole.keys);
  check_columns(choices_, {whole.queries, whole.keys, inputs_.q.shape.heads});
}

Question::Question(nb::handle q, const KvCache& part, std::span<const std::int64_t> lengths,
                   const nb::kwargs& keywords)
    : has_arrays_(false),
      q_(read_tensor("q", q)),
      choices_(read_choices(Caller::decode_over_ranks, keywords)) {
  check_rank(q_, 2, 4);
  inputs_.q = view(q_);
  check_not_empty("sequences", choices_.sequences, inputs_.q.shape.batch, "batch entry");
  value_dim_ = *part.config().value_dim;
  for (const std::int64_t length : lengths) keys_ = std::max(keys_, length);
}

void Question::take_arrays() {
  check_same_rank(k_, q_);
  check_same_rank(v_, q_);
  inputs_.k = view(k_);
  inputs_.v = view(v_);
  keys_ = inputs_.k.shape.length;
  value_dim_ = inputs_.v.shape.dim;
}

void Question::take_cache() {
  inputs_.cache = choices_.cache;
  value_dim_ = *choices_.cache->config().value_dim;
  const std::int64_t batch =
      choices_.query_starts.empty() ? inputs_.q.shape.batch : std::ssize(choices_.query_starts) - 1;
  check_not_empty("sequences", choices_.sequences, batch, "batch entry");
  keys_ = longest(*choices_.cache, inputs_.sequences, batch);
}

// The library checks the starts; until then they may say anything.
void Question::take_packed() {
  inputs_.query_starts = choices_.query_starts;
  inputs_.key_starts = choices_.key_starts;
  queries_ = 0;
  for (std::size_t n = 1; n < choices_.query_starts.size(); ++n)
    if (choices_.query_starts[n - 1] >= 0)
      queries_ = std::max(queries_, choices_.query_starts[n] - choices_.query_starts[n - 1]);
  if (choices_.cache) return;
  const std::vector<std::int64_t>&of_queries = choices_.query_starts, &of_keys = choices_.key_starts;
  const std::int64_t rows = keys_;
  keys_ = 0;
  for (std::size_t n = 1; n < of_keys.size(); ++n) {
    if (of_keys[n - 1] < 0 || of_keys[n] < of_keys[n - 1] || of_keys[n] > rows) return;
    const std::int64_t keys = of_keys[n] - of_keys[n - 1];
    keys_ = std::max(keys_, keys);
    if (n < of_queries.size() && of_queries[n - 1] >= 0 && of_queries[n] >= of_queries[n - 1])
      check_alignment(choices_, of_queries[n] - of_queries[n - 1], keys);
  }
}

// The library checks the lengths.
void Question::take_padded() {
  check_not_empty("query_lengths", choices_.query_lengths, inputs_.q.shape.batch, "batch entry");
  inputs_.query_counts = entries_of(choices_.query_lengths);
  for (const std::int64_t length : *choices_.query_lengths) check_alignment(choices_, length, keys_);
}

std::int64_t longest(const KvCache& cache, std::span<const std::int64_t> sequences, std::int64_t batch,
                     std::span<const std::int64_t> counts) {
  if (sequences.empty() && cache.sequences() != batch) return 0;
  std::int64_t most = 0;
  const auto entries = sequences.empty() ? static_cast<std::size_t>(batch) : sequences.size();
  for (std::size_t b = 0; b < entries; ++b) {
    const std::int64_t held = cache.length(sequences.empty() ? static_cast<std::int64_t>(b) : sequences[b]);
    most = std::max(most, held + (b < counts.size() ? counts[b] : 0));
  }
  return most;
}

}  // namespace heed::python
