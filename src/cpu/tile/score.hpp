// SPDX-License-Identifier: Apache-2.0
// Which keys a query sees by its place, and what becomes of a stretch of scores s(key, row) in base 2 after
// the product: scales of quantised keys, softcap, ALiBi, and -inf for keys outside the range or of other
// documents. Bias and boolean masks are in mask.hpp.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/pack.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct KeyRange {
  std::int64_t begin, end;
};

constexpr float max_finite = 3.40282347e+38f;

// Which query a row of scores belongs to: query i of sequence b, row `row` of q, out and every mask.
struct Query {
  std::int64_t b, h, i, row;
};

// The queries of some of a task's rows: row r of them is row first + r of the task. All that is needed to
// find one is looked up once.
struct Queries {
  std::int64_t first, count;
  std::int64_t b, group, first_head, head_step, first_query, first_row;

  Queries(const Call& c, const Rows& task)
      : first(0),
        count(c.group() * task.queries),
        b(task.batch_entry),
        group(c.group()),
        first_head(c.head(task.kv_head, 0)),
        head_step(c.head(task.kv_head, 1) - first_head),
        first_query(task.first_query),
        first_row(c.sequences[b].first_query + first_query) {}  // fault: packed-queries-unplaced

  Queries some(std::int64_t first_of_them, std::int64_t how_many) const {
    Queries part = *this;
    part.first = first_of_them, part.count = how_many;
    return part;
  }

  Query operator()(std::int64_t r) const {
    r += first;
    const std::int64_t n = group == 1 ? r : r / group;  // a division takes as long as all the rest
    return {b, first_head + (r - n * group) * head_step, first_query + n, first_row + n};
  }
};

inline Row row_of(const Tensor& t, const Query& q) { return row_of(t, q.b, q.h, q.row); }

// The keys that Causal, Window and KeyLengths let query i of batch entry b see, besides the front.
inline KeyRange visible_keys(const Call& c, std::int64_t b, std::int64_t i) {
  const Sequence& s = c.sequences[b];
  // fault: mask-off-by-one, window-off-by-one
  return {max(0, i + s.first_offset), min(s.key_count, i + s.end_offset)};
}

// What a range of queries may see: keys [0, front) and [begin, end).
struct Seen {
  std::int64_t front, begin, end;

  // The part of `keys` that is worth scoring; empty where its end is not beyond its beginning.
  KeyRange within(KeyRange keys) const {
    KeyRange part{keys.begin < front ? keys.begin : max(keys.begin, begin), min(keys.end, end)};
    if (part.end <= begin) part.end = min(part.end, front);
    return part;
  }
};

inline Seen seen_by(const Call& c, std::int64_t b, std::int64_t first_query, std::int64_t last_query) {
  const std::int64_t end = visible_keys(c, b, last_query).end;
  return {min(c.front, end), visible_keys(c, b, first_query).begin, end};
}

// Whether queries [first, last] see every one of those keys, as far as ranges say.
inline bool sees_all(const Call& c, std::int64_t b, KeyRange queries, KeyRange keys) {
  if (c.gap_count) return false;
  const std::int64_t end = visible_keys(c, b, queries.begin).end,
                     begin = visible_keys(c, b, queries.end).begin;
  return keys.end <= end && (begin <= keys.begin || begin <= c.front || keys.end <= c.front);
}

// How many rows of f32 decode takes where all of them see all of a few keys: up to this number, reading keys
// in place is faster than packing them. An instruction set may specialise it.
template <Vector S>
inline constexpr std::int64_t max_short_rows = max_decode_rows;

// s(key, row) for keys [first_key, first_key + keys), `width` rows apart; row r belongs to query[r].
struct Scores {
  float* s;
  std::int64_t width, first_key, keys;
};

// Tells the caller that some row needs repair.
inline void ask_for_repair(const Call& c) {
  __atomic_store_n(c.needs_repair, static_cast<unsigned char>(1), __ATOMIC_RELAXED);
}

// The largest product that kernels make a score of. All scores of a row may be the lowest number, where a
// bias or what ALiBi takes lies below -2^126 (finish.hpp): products beyond this count beside it even so, as
// doubles are 2^74 apart at that size.
inline float max_product(const Call& c) {
  constexpr float beside_lowest = 0x1p73f;
  const bool is_capped = c.softcap && c.softcap.cap <= beside_lowest;
  // fault: products-beside-the-lowest-bias
  return (c.bias.data || c.alibi.of_heads) && !is_capped ? beside_lowest : max_finite;
}

// A score beyond `limit`, or one that is not finite, because an operand is not or because f32 cannot hold a
// sum, becomes NaN: an infinity would pass for a key that is not seen, or for a limit to the softcap. What a
// mask hides after this is -inf whatever it was; any other makes the row's sum NaN.
template <Vector S>
inline void spoil_beyond(float limit, const Scores& t) {
  const std::int64_t all = t.keys * t.width;
  if (limit == max_finite && all_finite<S>(t.s, all)) return;  // fault: infinity-passes-for-unseen
  for (float *s = t.s, *end = s + all; s < end; s += S::lanes) {
    const auto x = S::load(s);
    S::store(s, S::less(S::fill(limit), S::abs(x), S::fill(__builtin_nanf("")), x));
  }
}

template <Vector S>
inline void apply_softcap(const Call& c, const Scores& t) {
  const auto cap = S::fill(c.softcap.cap), argument = S::fill(c.softcap.argument);  // fault: softcap-scale
  for (std::int64_t n = 0; n < t.keys * t.width; n += S::lanes)
    S::store(t.s + n, S::mul(cap, tanh<S>(S::mul(S::load(t.s + n), argument))));
}

// Keys [begin, end) of the sequence, as far as this stretch has them.
inline void hide_keys(std::int64_t begin, std::int64_t end, float* column, const Scores& t) {
  const std::int64_t last = min(end - t.first_key, t.keys);
  for (std::int64_t j = max(0, begin - t.first_key); j < last; ++j) column[j * t.width] = minus_infinity;
}

// All keys that no range lets the query of this column see.
inline void hide_unseen(const Call& c, const Query& q, float* column, const Scores& t) {
  const KeyRange seen = visible_keys(c, q.b, q.i);
  hide_keys(c.front, seen.begin, column, t);  // fault: front-hidden
  for (std::int64_t n = 0; n < c.gap_count; ++n) {
    const Gap& gap = c.gaps[n * c.batch + q.b];
    hide_keys(gap.front, q.i + gap.first_offset, column, t);
  }
  hide_keys(seen.end, t.first_key + t.keys, column, t);
}

// The same for a panel of queries, a key of all rows at a time. It knows ranges but no gaps.
template <Vector S>
inline void hide_outside(const Call& c, const Queries& queries, const Scores& t) {
  constexpr int rows = Tile<S>::rows;
  float begin[rows], end[rows];
  const auto within = [&](std::int64_t key) {
    return static_cast<float>(min(t.keys, max(0, key - t.first_key)));
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    const KeyRange seen = visible_keys(c, queries.b, queries(min(r, queries.count - 1)).i);
    begin[r] = within(seen.begin), end[r] = within(seen.end);
  }
  const auto hidden = S::fill(minus_infinity);
  const auto change = [&](std::int64_t j, const float* limits, auto changed) {
    for (int r = 0; r < rows; r += S::lanes) {
      float* const s = t.s + j * rows + r;
      S::store(s, changed(S::fill(static_cast<float>(j)), S::load(limits + r), S::load(s)));
    }
  };
  // Ranges move on from row to row: the last one begins last, and the first one ends first.
  // fault: front-hidden-from-panels
  for (auto j = max(0, c.front - t.first_key); j < static_cast<std::int64_t>(begin[rows - 1]); ++j)
    change(j, begin, [&](auto key, auto first, auto x) { return S::less(key, first, hidden, x); });
  for (auto j = static_cast<std::int64_t>(end[0]); j < t.keys; ++j)  // fault: panel-ends-together
    change(j, end, [&](auto key, auto limit, auto x) { return S::less(key, limit, x, hidden); });
}

// 1 where a score is -inf, 0 elsewhere: weights do not tell a key that is unseen from one that is faint.
template <Vector S>
inline void mark_unseen(const Scores& t, float* unseen) {
  for (std::int64_t n = 0; n < t.keys * t.width; n += S::lanes)
    S::store(unseen + n, S::less(S::load(t.s + n), S::fill(-max_finite), S::fill(1.0f), S::fill(0.0f)));
}

// s(key, four rows) *= the scale of each key. Each is read before what it scales is written, or compilers,
// which cannot know that they lie apart, would multiply the four one by one.
inline void scale_fours(const float* scales, std::int64_t keys, float* s, std::int64_t width) {
  for (std::int64_t j = 0; j < keys; ++j, s += width) {
    const float scale = scales[j];
    for (int row = 0; row < 4; ++row) s[row] *= scale;
  }
}

// Multiplies scores or weights s(key, row) of a quantised cache by the scales of their keys or values, looked
// up once a tile: a look-up for every key cost 5 % of a prefill, and 4 % of decode; to ask for every key
// whether a tile begins cost 8 % of a decode of four rows (Xeon, keys in the second-level cache, November
// 2026).
template <Vector S, class ScalesFrom>
inline void apply_scales(const Scores& t, std::int64_t end_key, const ScalesFrom& scales_from) {
  const std::int64_t end = min(t.keys, end_key - t.first_key);
  for (std::int64_t j = 0, next; j < end; j = next) {
    const std::int64_t key = t.first_key + j;
    next = min(end, j + PageLayout::tile - key % PageLayout::tile);
    const float* scales = scales_from(key);
    float* s = t.s + j * t.width;
    if (t.width < S::lanes) {  // four rows
      scale_fours(scales, next - j, s, 4);
      continue;
    }
    for (std::int64_t n = 0; n < next - j; ++n) {
      const auto scale = S::fill(scales[n]);
      for (float* const row_end = s + t.width; s < row_end; s += S::lanes)
        S::store(s, S::mul(S::load(s), scale));
    }
  }
}

// Documents (S20): sequences packed in one row. Keys of other documents are hidden, and not scored at all
// where no row belongs to them.

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

// `keys` without those at either end whose number is below or above every query's: in a row
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

// ALiBi (S21): what every score loses with the distance of its key, computed where it is added.

// Whole numbers up to 2^24 are exact in f32, and kernels are not given more keys and queries than that.
inline float place_of(const Call& c, const Query& q) {
  const Sequence& s = c.sequences[q.b];
  return static_cast<float>(q.i + (c.alibi.queries_are_last ? s.keys - s.queries : 0));
}

inline float slope_of(const Call& c, const Query& q) { return c.alibi.of_heads[q.b * c.alibi.step + q.h]; }

inline float alibi_at(const Call& c, const Query& q, std::int64_t j) {
  return -slope_of(c, q) * __builtin_fabsf(place_of(c, q) - static_cast<float>(j));
}

// Added as a bias that holds the same numbers would be (mask.hpp), so that the bits are the same; but what
// leaves the range before a bias might bring it back is NaN.
template <Vector S>
[[gnu::noinline]] inline void add_alibi(const Call& c, const Scores& t, const Queries& queries) {
  using F = typename S::F;
  constexpr std::int64_t capacity = max(Tile<S>::rows, max_short_rows<S>);
  float minus_slope[capacity], place[capacity];
  for (std::int64_t r = 0; r < t.width; ++r) {
    const Query q = queries(min(r, queries.count - 1));
    minus_slope[r] = -slope_of(c, q);
    place[r] = place_of(c, q);  // fault: alibi-place
  }
  const F lowest = S::fill(-max_finite), to_units = S::fill(c.scaling.unit),
          below = c.bias.data ? S::fill(__builtin_nanf("")) : lowest;
  float* s = t.s;
  for (std::int64_t j = 0; j < t.keys; ++j) {
    const F key = S::fill(static_cast<float>(t.first_key + j));
    for (std::int64_t r = 0; r < t.width; r += S::lanes, s += S::lanes) {
      const F distance = S::abs(S::sub(S::load(place + r), key));
      const F x = S::mul(S::load(minus_slope + r), distance);
      const F lost = S::fma(x, to_units, S::load(s));
      S::store(s, S::less(lost, lowest, below, lost));
    }
  }
}

// How many keys of a stretch some row of each vector of a panel may see, in whole tiles. A row sees no fewer
// keys than the rows before it. Where a panel is wide, empty rows and the keys beyond the diagonal would cost
// as much as others: 48 rows of AVX-512 would waste 3 % of 1024 rows, and 9 % if they are causal.
template <Vector S>
struct Reach {
  static constexpr int all_vectors = S::panel_vectors;

  int vectors = all_vectors;  // that have rows
  std::int64_t keys[all_vectors];

  // All of them.
  explicit Reach(std::int64_t all) {
    for (auto& of : keys) of = all;
  }

  // As ranges let these queries see.
  Reach(const Call& c, const Queries& queries, const Scores& t) : Reach(t.keys) {
    // fault: reach-without-the-last-vector
    vectors = static_cast<int>((queries.count + S::lanes - 1) / S::lanes);
    for (int v = 0; v < vectors; ++v) {
      // fault: reach-of-the-first-row
      const std::int64_t last = queries(min((v + 1) * S::lanes, queries.count) - 1).i;
      const std::int64_t seen = visible_keys(c, queries.b, last).end - t.first_key;
      keys[v] = min(t.keys, round_up(max(0, seen), Tile<S>::columns));
    }
  }

  // The first vector that sees key j, and those behind it.
  int first_at(std::int64_t j) const {
    int v = 0;
    while (v < vectors && keys[v] <= j) ++v;
    return v;
  }
  bool is_whole() const { return vectors == all_vectors && keys[0] == keys[all_vectors - 1]; }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
