// SPDX-License-Identifier: Apache-2.0
// Who attends to what: one sequence per batch entry, from plain views, packed rows or a cache.
#include <algorithm>

#include "cache/layout.hpp"
#include "call/make_problem.hpp"
#include "heed/cache.hpp"
#include "refusal/refusal.hpp"

namespace heed::call {
namespace {

void check_one_batch(const char* name, const View& x) {
  if (x.shape.batch != 1)
    throw refusal(Error::shape, name, ".batch: ", x.shape.batch, " is not 1, which packed sequences need");
}

void check_counts(std::span<const std::int64_t> counts, const Shape& q) {
  if (std::ssize(counts) != q.batch)
    throw refusal(Error::shape, "query_counts: ", std::ssize(counts), " entries for q.batch: ", q.batch);
  for (std::size_t b = 0; b < counts.size(); ++b)
    if (counts[b] < 0 || counts[b] > q.length)
      throw refusal(Error::value, "query_counts[", static_cast<std::int64_t>(b), "]: ", counts[b],
                    " is not in [0, ", q.length, "], the queries of q");
}

void place_queries(const Inputs& in, Problem& p, bool one_for_all) {
  if (in.query_starts.empty()) {
    p.batch = in.q.shape.batch;
    p.sequences.resize(static_cast<std::size_t>(one_for_all ? std::min<std::int64_t>(p.batch, 1) : p.batch));
    for (Sequence& s : p.sequences) s.queries = in.q.shape.length;
    if (in.query_counts.empty()) return;
    check_counts(in.query_counts, in.q.shape);
    for (std::size_t b = 0; b < p.sequences.size(); ++b) p.sequences[b].queries = in.query_counts[b];
    return;
  }
  if (!in.query_counts.empty())
    throw refusal(Error::value,
                  "query_counts: given, but so are query_starts; packed queries have no padding");
  check_one_batch("q", in.q);
  check_starts("query_starts", in.query_starts, "q.length", in.q.shape.length);
  p.batch = std::ssize(in.query_starts) - 1;
  p.sequences.resize(static_cast<std::size_t>(p.batch));
  for (std::size_t n = 0; n < p.sequences.size(); ++n) {
    p.sequences[n].first_query = in.query_starts[n];
    p.sequences[n].queries = in.query_starts[n + 1] - in.query_starts[n];
  }
}

void place_keys(const Inputs& in, Problem& p) {
  if (!in.sequences.empty())
    throw refusal(Error::value, "inputs.sequences: given, but no cache whose sequences they are");
  if (in.query_starts.empty() != in.key_starts.empty())
    throw refusal(Error::shape, in.key_starts.empty() ? "key_starts" : "query_starts",
                  ": not given, but the other is; queries and keys are packed together");
  if (in.key_starts.empty()) {
    for (Sequence& s : p.sequences) s.keys = in.k.shape.length;
    return;
  }
  check_one_batch("k", in.k);
  check_one_batch("v", in.v);
  check_starts("key_starts", in.key_starts, "k.length", in.k.shape.length);
  if (std::ssize(in.key_starts) != std::ssize(in.query_starts))
    throw refusal(Error::shape, "key_starts: ", std::ssize(in.key_starts),
                  " entries are not as many as query_starts: ", std::ssize(in.query_starts));
  for (std::size_t n = 0; n < p.sequences.size(); ++n) {
    p.sequences[n].first_key = in.key_starts[n];
    p.sequences[n].keys = in.key_starts[n + 1] - in.key_starts[n];
  }
}

// All lengths are of one moment: this one, or that of the call to come.
void place_keys_in_cache(const Inputs& in, Problem& p, const std::optional<LengthsToCome>& to_come) {
  if (in.k.data || in.v.data)
    throw refusal(Error::value, in.k.data ? "k" : "v", ": given, but so is the cache, which stands for it");
  if (!in.key_starts.empty())
    throw refusal(Error::value, "key_starts: given, but the cache knows its lengths");
  const std::int64_t wanted = std::ssize(in.sequences);
  if (!in.sequences.empty() && wanted != p.batch)
    throw refusal(Error::shape, "inputs.sequences: ", wanted, " numbers for a batch of ", p.batch);
  const bool reads_all = in.sequences.empty() && p.batch > 0 && !to_come;
  if (const std::int64_t held = reads_all ? in.cache->sequences() : p.batch; held != p.batch)
    throw refusal(Error::shape, "cache.sequences: ", held, " are not the batch: ", p.batch,
                  "; say which by inputs.sequences");
  for (std::size_t n = 0; n < p.sequences.size(); ++n)
    p.sequences[n].in_cache = in.sequences.empty() ? static_cast<std::int64_t>(n) : in.sequences[n];
  p.layout = cache::layout_of(*in.cache);
  // Without its pages as long as tokens are to come: which kernels take the call does not depend on them.
  if (!to_come) hold_cache(p);
  for (std::size_t n = 0; to_come && n < p.sequences.size(); ++n)
    p.cached.push_back({nullptr, (*to_come)[n]});
  for (std::size_t n = 0; n < p.sequences.size(); ++n) {
    Sequence& s = p.sequences[n];
    s.keys = p.cached[n].length;
    if (s.queries > s.keys)
      throw refusal(Error::shape, "q.length: ", s.queries, " queries for batch entry ",
                    static_cast<std::int64_t>(n), " are more than the ", s.keys,
                    " tokens of its sequence; append their keys and values first");
  }
}

}  // namespace

std::int64_t offset_of(const char* name, std::optional<Align> align, const Problem& p, const Sequence& s) {
  if (!align && s.queries != s.keys && !p.inputs.cache)
    throw refusal(Error::ambiguous, name, ": ", s.queries, " queries, ", s.keys,
                  " keys; say Align::ends (decode) or Align::starts");
  if (align && *align > Align::ends)
    throw refusal(Error::value, name, ": align ", static_cast<std::int64_t>(*align),
                  " is none of starts, ends");
  return align == Align::starts ? 0 : s.keys - s.queries;
}

void hold_cache(Problem& p) {
  cache::SequenceNumbers numbers;
  for (const Sequence& s : p.sequences) numbers.push_back(s.in_cache);
  p.reading.emplace(*p.inputs.cache, std::move(numbers));
  p.cached.clear();
  for (const Sequence& s : p.sequences) p.cached.push_back(p.reading->sequence(s.in_cache));
}

bool writes_nothing(const Inputs& in, std::span<const Argument> arguments) {
  if (in.cache || !in.query_starts.empty() || !in.query_counts.empty()) return false;
  if (in.q.shape.heads > 0 && in.q.shape.length > 0) return false;
  const auto is_written = [](const Argument& a) { return a.rule.use == Rule::written && !a.empty(); };
  return std::none_of(arguments.begin(), arguments.end(), is_written);
}

void place_sequences(const Inputs& inputs, Problem& p, const std::optional<LengthsToCome>& to_come,
                     bool one_for_all) {
  place_queries(inputs, p, one_for_all);
  if (inputs.cache) {
    place_keys_in_cache(inputs, p, to_come);
    p.kv_heads = inputs.cache->config().kv_heads;
    p.value_dim = *inputs.cache->config().value_dim;
    p.cache_type = inputs.cache->config().type;
    const std::optional<CacheRotary>& rotary = inputs.cache->config().rotary;
    p.rotates_keys = rotary && rotary->when == CacheRotary::When::read;
    // fault: turned-cache-of-another-type
    p.kv_type =
        p.rotates_keys ? problem::type_of(problem::dtype_of(p.cache_type)) : problem::type_of(p.cache_type);
  } else {
    place_keys(inputs, p);
    p.kv_heads = inputs.k.shape.heads;
    p.value_dim = inputs.v.shape.dim;
    p.kv_type = problem::type_of(inputs.k.dtype);
  }
  p.heads = inputs.q.shape.heads;
  p.dim = inputs.q.shape.dim;
  if (p.sequences.empty() && inputs.query_starts.empty()) {  // an empty batch still has extents to fit
    p.queries = inputs.q.shape.length;
    p.keys = inputs.cache ? 0 : inputs.k.shape.length;
  }
  if (p.place)  // only whole views are a part of something larger (make_stream_problem.cpp)
    for (Sequence& s : p.sequences) s.queries = p.place->queries, s.first_query = -p.place->first_query;
  for (Sequence& s : p.sequences) {
    s.key_count = s.keys;
    p.queries = std::max(p.queries, s.queries);
    p.keys = std::max(p.keys, s.keys);
  }
}

}  // namespace heed::call
