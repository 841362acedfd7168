// SPDX-License-Identifier: Apache-2.0
// Turns the list of masks into one band of keys per query, one count of keys per batch entry, and boolean
// masks.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "problem/checks.hpp"
#include "refusal/refusal.hpp"

namespace heed {
namespace {

// The key at the position of query 0.
std::int64_t offset_of(const char* name, std::optional<Align> align, const Problem& p) {
  if (!align) {
    if (p.queries != p.keys)
      throw refusal(Error::ambiguous, name, ": ", p.queries, " queries, ", p.keys,
                    " keys; say Align::ends (decode) or Align::starts");
    return 0;
  }
  if (*align > Align::ends)
    throw refusal(Error::value, name, ": align ", static_cast<std::int64_t>(*align),
                  " is none of starts, ends");
  return *align == Align::ends ? p.keys - p.queries : 0;
}

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

// Narrows the band to [first, end), both relative to the query. It starts as wide as the clamp and stays
// inside: first never exceeds the keys, and end never falls below 1 - queries.
void narrow_band(Problem& p, std::int64_t first, std::int64_t end) {
  p.first_offset = std::max(p.first_offset, first);
  p.end_offset = std::min(p.end_offset, end);
}

void lower(Problem& p, const Causal& causal) {
  const std::int64_t offset = offset_of("causal mask", causal.align, p);
  narrow_band(p, p.first_offset, offset + 1);
}

void lower(Problem& p, const Window& window) {
  if (window.left < 0) throw refusal(Error::value, "window mask: left ", window.left, " is negative");
  if (window.right < 0) throw refusal(Error::value, "window mask: right ", window.right, " is negative");
  const std::int64_t offset = offset_of("window mask", window.align, p);
  narrow_band(p, saturating_add(offset, -window.left), saturating_add(offset + 1, window.right));
}

void lower(Problem& p, const KeyLengths& lengths) {
  const auto entries = static_cast<std::int64_t>(lengths.valid.size());
  if (entries != p.batch)
    throw refusal(Error::shape, "key lengths: ", entries, " counts for q.batch: ", p.batch);
  for (std::size_t b = 0; b < lengths.valid.size(); ++b) {
    const std::int64_t count = lengths.valid[b];
    if (count < 0 || count > p.keys)
      throw refusal(Error::value, "key lengths: ", count, " for batch entry ", static_cast<std::int64_t>(b),
                    " is outside [0, ", p.keys, "], the keys there are");
    p.key_counts[b] = std::min(p.key_counts[b], count);
  }
}

void lower_bool_mask(Problem& p, const char* name, const BoolMask& mask, const BoolView& view) {
  check_argument({name, view});
  check_broadcasts({name, view}, "(batch, heads, queries, keys)", {p.batch, p.heads, p.queries, p.keys});
  p.bool_masks.push_back(mask);
}

void lower(Problem& p, const Keep& keep) {
  const BoolView& view = keep.where;
  lower_bool_mask(p, "keep mask", {view.data, broadcast_stride(view.shape, view.stride), true}, view);
}

void lower(Problem& p, const Hide& hide) {
  const BoolView& view = hide.where;
  lower_bool_mask(p, "hide mask", {view.data, broadcast_stride(view.shape, view.stride), false}, view);
}

}  // namespace

void lower_masks(Problem& p) {
  p.first_offset = -(p.queries + p.keys);
  p.end_offset = p.queries + p.keys;
  p.key_counts.assign(static_cast<std::size_t>(p.batch), p.keys);
  for (const Mask& mask : p.options.masks) std::visit([&p](const auto& m) { lower(p, m); }, mask);
}

}  // namespace heed
