// SPDX-License-Identifier: Apache-2.0
// Sequences packed in one row (S20): keys of other documents are hidden, and not scored at all where none of
// the rows is of theirs.
#pragma once
#include <cstdint>

#include "cpu/tile/exp2.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/call.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

constexpr std::int64_t no_document = std::int64_t{1} << 40;  // is nobody's number: those have 32 bits

// One number per key of batch entry b.
inline const std::int32_t* key_documents(const DocumentIds& d, std::int64_t b) {
  return d.keys + b * d.keys_step;
}

inline std::int64_t document_of(const DocumentIds& d, const Sequence& s, const Query& q) {
  if (d.queries) return d.queries[q.b * d.queries_step + q.i];
  const std::int64_t own = q.i + (d.queries_are_last ? s.keys - s.queries : 0);
  return own >= 0 && own < s.keys ? key_documents(d, q.b)[own] : no_document;
}

// What is left of `keys` without those at either end whose number is below or above every query's: in a row
// of documents one after another, all that no query sees.
[[gnu::noinline]] inline KeyRange trim_documents(const Call& c, KeyRange keys, const Queries& queries) {
  for (std::int64_t n = 0; n < c.document_count; ++n) {
    const DocumentIds& d = c.documents[n];
    const Sequence& s = c.sequences[queries(0).b];
    std::int64_t lowest = no_document, highest = -no_document;
    for (std::int64_t r = 0; r < queries.count; ++r) {
      const std::int64_t own = document_of(d, s, queries(r));
      if (own == no_document) continue;
      lowest = min(lowest, own);
      highest = max(highest, own);
    }
    const std::int32_t* of = key_documents(d, queries(0).b);
    // fault: document-trimmed-too-far
    const auto is_others = [&](std::int64_t j) { return of[j] < lowest || of[j] > highest; };
    while (keys.begin < keys.end && is_others(keys.end - 1)) --keys.end;
    while (keys.begin < keys.end && is_others(keys.begin)) ++keys.begin;
  }
  return keys;
}

// Rows side by side are mostly of one document, and so are the keys: where a row saw all of them, the next of
// its document need not look.
[[gnu::noinline]] inline void hide_other_documents(const DocumentIds& d, const Sequence& s, const Scores& t,
                                                   const Queries& queries) {
  const std::int32_t* of = key_documents(d, queries(0).b) + t.first_key;
  const std::int64_t keys = min(t.keys, s.keys - t.first_key);
  std::int64_t of_all = no_document;
  for (std::int64_t r = 0; r < queries.count; ++r) {
    const std::int64_t own = document_of(d, s, queries(r));  // fault: document-of-the-first-query
    if (own == of_all && own != no_document) continue;
    bool hides_any = false;
    for (std::int64_t j = 0; j < keys; ++j)
      if (of[j] != own) {
        t.s[j * t.width + r] = minus_infinity;
        hides_any = true;
      }
    if (!hides_any) of_all = own;
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
