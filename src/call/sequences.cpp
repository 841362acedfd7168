// SPDX-License-Identifier: Apache-2.0
// Who attends to what: one sequence per batch entry, from plain views, packed rows or a cache.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cache/layout.hpp"
#include "call/make_problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::call {
namespace {

// starts has one entry more than there are sequences; it begins at 0, never falls and ends at `rows`.
void check_starts(const char* name, std::span<const std::int64_t> starts, const char* rows_name,
                  std::int64_t rows) {
  if (starts.front() != 0) throw refusal(Error::value, name, "[0]: ", starts.front(), " is not 0");
  for (std::size_t n = 1; n < starts.size(); ++n)
    if (starts[n] < starts[n - 1])
      throw refusal(Error::value, name, "[", static_cast<std::int64_t>(n), "]: ", starts[n],
                    " is less than the entry before it: ", starts[n - 1]);
  if (starts.back() != rows)
    throw refusal(Error::value, name, ": its last entry ", starts.back(), " is not ", rows_name, ": ", rows);
}

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
  if (!to_come) p.reading.emplace(*in.cache);
  const std::int64_t wanted = std::ssize(in.sequences);
  if (in.sequences.empty() && p.batch > 0 && p.reading && p.reading->sequences() != p.batch)
    throw refusal(Error::shape, "cache.sequences: ", p.reading->sequences(), " are not the batch: ", p.batch,
                  "; say which by inputs.sequences");
  if (!in.sequences.empty() && wanted != p.batch)
    throw refusal(Error::shape, "inputs.sequences: ", wanted, " numbers for a batch of ", p.batch);
  for (std::size_t n = 0; n < p.sequences.size(); ++n) {
    Sequence& s = p.sequences[n];
    s.in_cache = in.sequences.empty() ? static_cast<std::int64_t>(n) : in.sequences[n];
    if (!to_come) p.cached.push_back(p.reading->sequence(s.in_cache));
    s.keys = to_come ? (*to_come)[n] : p.cached[n].length;
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
  p.reading.emplace(*p.inputs.cache);
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

// Lowers the list of masks to one band of keys per query, one count of keys per sequence, and boolean masks.

namespace {

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

// Bands start as wide as the clamp and stay inside: first never exceeds the keys, and end never falls below
// 1 - queries.
void lower(Problem& p, const Causal& causal) {
  for (Sequence& s : p.sequences)
    s.end_offset = std::min(s.end_offset, offset_of("causal mask", causal.align, p, s) + 1);
}

bool has_window_already(const Problem& p) {
  return std::any_of(p.sequences.begin(), p.sequences.end(),
                     [](const Sequence& s) { return s.first_offset > -(s.queries + s.keys); });
}

void lower(Problem& p, const Window& window) {
  if (window.left < 0) throw refusal(Error::value, "window mask: left ", window.left, " is negative");
  if (window.right < 0) throw refusal(Error::value, "window mask: right ", window.right, " is negative");
  if (window.front < 0) throw refusal(Error::value, "window mask: front ", window.front, " is negative");
  const bool is_another_gap = window.front != p.front && has_window_already(p);
  if (!is_another_gap) p.front = window.front;
  for (Sequence& s : p.sequences) {
    const std::int64_t offset = offset_of("window mask", window.align, p, s);
    const std::int64_t first = std::max(saturating_add(offset, -window.left), -(s.queries + s.keys));
    if (is_another_gap)
      p.gaps.push_back({window.front, first});
    else
      s.first_offset = std::max(s.first_offset, first);
    s.end_offset = std::min(s.end_offset, saturating_add(offset + 1, window.right));
  }
}

void lower(Problem& p, const KeyLengths& lengths) {
  const auto entries = static_cast<std::int64_t>(lengths.valid.size());
  if (entries != p.batch)
    throw refusal(Error::shape, "key lengths: ", entries, " counts for q.batch: ", p.batch);
  for (std::size_t b = 0; b < lengths.valid.size(); ++b) {
    const std::int64_t count = lengths.valid[b];
    Sequence& s = p.sequences[std::min(b, p.sequences.size() - 1)];  // one may stand for all
    if (count < 0 || count > s.keys)
      throw refusal(Error::value, "key lengths: ", count, " for batch entry ", static_cast<std::int64_t>(b),
                    " is outside [0, ", s.keys, "], the keys there are");
    s.key_count = std::min(s.key_count, count);
  }
}

struct PerToken {
  const char *name, *token;
  std::int64_t tokens;
};

// How much further the numbers of the next sequence begin.
std::int64_t step_of(std::span<const std::int32_t> ids, const PerToken& rule, std::int64_t batch) {
  const std::int64_t found = std::ssize(ids), all = elements::product(batch, rule.tokens);
  if (found != rule.tokens && found != all)
    throw refusal(Error::shape, "document mask: ", found, " ", rule.name, " are neither one per ", rule.token,
                  ": ", rule.tokens, " nor one per batch entry and ", rule.token, ": ", all);
  return found == rule.tokens ? 0 : rule.tokens;
}

void lower(Problem& p, const Document& document) {
  DocumentIds ids{.keys = document.ids.data(),
                  .keys_step = step_of(document.ids, {"ids", "key", p.keys}, p.batch)};
  if (!document.query_ids.empty()) {
    const bool is_whole = p.inputs.query_starts.empty() && !p.place;
    const std::int64_t queries = is_whole ? p.inputs.q.shape.length : p.queries;
    ids.queries = document.query_ids.data();
    ids.queries_step = step_of(document.query_ids, {"query_ids", "query", queries}, p.batch);
  } else {
    for (const Sequence& s : p.sequences) offset_of("document mask", document.align, p, s);
    ids.queries_are_last = document.align != Align::starts;
  }
  p.documents.push_back(ids);
}

void lower_bools(Problem& p, const BoolView& view, BoolMask mask) {
  mask.data = view.data;
  mask.stride = broadcast_stride(view.shape, view.stride);
  mask.device = view.device;
  p.bool_masks.push_back(mask);
}

void lower(Problem& p, const Keep& keep) { lower_bools(p, keep.where, {}); }
void lower(Problem& p, const Hide& hide) { lower_bools(p, hide.where, {.visible_when = false}); }
void lower(Problem& p, const Tree& tree) {
  for (const Sequence& s : p.sequences)
    if (s.queries > s.keys)
      throw refusal(Error::shape, "tree mask: ", s.queries, " queries, ", s.keys,
                    " keys; every query is one of the last keys");
  lower_bools(p, tree.where, {.is_tree = true});
}

}  // namespace

void lower_masks(Problem& p, const Extents& extents, Arguments& arguments) {
  for (Sequence& s : p.sequences) {
    s.first_offset = -(s.queries + s.keys);
    s.end_offset = s.queries + s.keys;
  }
  for (const Mask& mask : p.options.masks) {
    const std::size_t first = arguments.size();
    add_arguments(mask, arguments);
    check_alone(arguments.from(first));
    check_devices(arguments.from(first), "q.device", p.device());
    check_extents(arguments.from(first), extents);
    std::visit([&p](const auto& m) { lower(p, m); }, mask);
  }
}

// ALiBi (S21): one finite slope per query head, or per batch entry and head, and queries that stand somewhere
// among the keys.

void check_slopes(std::span<const float> slopes, std::int64_t batch, std::int64_t heads) {
  const std::int64_t found = std::ssize(slopes), all = elements::product(batch, heads);
  if (found != heads && found != all)
    throw refusal(Error::shape, "options.alibi: ", found, " slopes are neither one per head: ", heads,
                  " nor one per batch entry and head: ", all);
  for (std::size_t h = 0; h < slopes.size(); ++h)
    if (!std::isfinite(slopes[h]))
      throw refusal(Error::value, "options.alibi.slopes[", static_cast<std::int64_t>(h), "]: ", slopes[h],
                    " is not a finite number");
}

void lower_alibi(Problem& p) {
  if (!p.options.alibi) return;
  const auto& [slopes, align] = *p.options.alibi;
  check_slopes(slopes, p.batch, p.heads);
  for (const Sequence& s : p.sequences) offset_of("options.alibi", align, p, s);
  p.alibi = {slopes.data(), std::ssize(slopes) == p.heads ? 0 : p.heads, align != Align::starts};
}

}  // namespace heed::call
