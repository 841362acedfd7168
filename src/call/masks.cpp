// SPDX-License-Identifier: Apache-2.0
// Masks become one band of keys per query, one count of keys per sequence, numbers of documents, and boolean
// matrices; ALiBi becomes slopes.
#include <algorithm>
#include <limits>
#include <variant>

#include "call/make_problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::call {
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

void lower_alibi(Problem& p) {
  if (!p.options.alibi) return;
  const auto& [slopes, align] = *p.options.alibi;
  check_slopes(slopes, p.batch, p.heads);
  for (const Sequence& s : p.sequences) offset_of("options.alibi", align, p, s);
  p.alibi = {slopes.data(), std::ssize(slopes) == p.heads ? 0 : p.heads, align != Align::starts};
}

}  // namespace heed::call
