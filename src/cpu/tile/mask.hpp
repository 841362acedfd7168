// SPDX-License-Identifier: Apache-2.0
// Bias and boolean masks on a stretch of scores s(key, row). The caller's rows run along the keys, the
// vectors of scores across the rows: a strip of keys at a time is widened and transposed, or spread over all
// lanes where every row reads the same mask. A boolean is an int8, true unless 0, and takes the same way.
// First what one element does to a score, then strips, then whole masks.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Takes the place of Maxima where the scores are not final yet, or are no panel's.
template <Vector S>
struct NoMaxima {
  void take(const Scores&) {}
};

// Where scores of sixteen rows lie, s(key, rows), and which vector of a panel they are.
struct SixteenRows {
  float* s;
  std::int64_t width, vector;
};

// Replaces scores by change(score, x), x being the key's element of transposed lines, and takes the maxima of
// the results. To read them once more for the maxima would make a shared bias in f32 cost 12 heads of 1024 x
// 64 4 points more with 16 threads, and a bias for each head in bf16 20 points more with 2 (AMX, a Xeon,
// November 2026).
template <Vector S, Type type, class Lines, class Highest, class Change>
[[gnu::always_inline]] inline void change_transposed(const Lines& lines, const SixteenRows at,
                                                     Highest& highest, const Change change) {
  constexpr int in_line = type == Type::f32 ? 1 : 2;  // keys
  constexpr bool takes = requires { highest.of; };
  const std::int64_t width = takes ? Tile<S>::rows : at.width;
  float* s = at.s;
  typename S::F so_far{};
  if constexpr (takes) so_far = highest.of[at.vector];
#pragma GCC unroll 16
  for (int n = 0; n < 16 * in_line; n += 4, s += 4 * width) {
    typename S::F x[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const auto score = S::load(s + k * width);
      const auto& line = lines[(n + k) / in_line];
      if constexpr (type == Type::f32)
        x[k] = change(score, S::f32_of(line));
      else
        x[k] = change(score, S::bf16_of(line, k % 2));
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) S::store(s + k * width, x[k]);
    if constexpr (takes) so_far = larger_of_four<S>(so_far, x);
  }
  if constexpr (takes) highest.of[at.vector] = so_far;
}

// A bias of -inf hides, whatever the score (S4). Any other is an ordinary number, however large and negative:
// in units of the scores it must not overflow into a mask (S3). A row all of whose scores end up as the
// lowest number is looked at again (finish.hpp).
template <Vector S>
struct AddBias {
  using F = typename S::F;
  const F to_units, lowest = S::fill(-max_finite), hidden = S::fill(minus_infinity);

  explicit AddBias(const Call& c) : to_units(S::fill(c.scaling.unit)) {}
  // fault: bias-sign, bias-overflows-into-a-mask
  F operator()(F s, F x) const { return S::less(x, lowest, hidden, S::max(lowest, S::fma(x, to_units, s))); }

  static constexpr bool takes_lines_of(Type type) { return type == Type::f32 || type == Type::bf16; }

  // No bias above -2^80 makes the lowest number lower, and a score is not -inf before.
  template <Type type, class Lines, class Highest>
  [[gnu::always_inline]] void change_lines(Lines& x, const SixteenRows at, Highest& highest) const {
    const bool is_far = type == Type::f32 ? S::any_f32_far_below(x) : S::any_bf16_far_below(x);
    S::transpose(x);
    if (is_far)
      change_transposed<S, type>(x, at, highest, *this);
    else
      change_transposed<S, type>(x, at, highest,
                                 [e = to_units](F score, F bias) { return S::fma(bias, e, score); });
  }
};

// Hides what a boolean mask hides. Where x is a number, it is not 0 for true.
template <Vector S, bool visible_when>
struct HideWhere {
  using F = typename S::F;
  const F half = S::fill(0.5f), hidden = S::fill(minus_infinity);

  F operator()(F s, F x) const {
    // fault: byte-of-two-is-false
    return visible_when ? S::less(S::abs(x), half, hidden, s) : S::less(half, S::abs(x), hidden, s);
  }

  static constexpr bool takes_lines_of(Type type) { return type == Type::int8; }

  template <Type, class Lines>
  [[gnu::always_inline]] void change_lines(Lines& x, const SixteenRows at, NoMaxima<S>&) const {
    S::transpose(x);
    float* s = at.s;
#pragma GCC unroll 64
    for (int n = 0; n < 64; ++n, s += at.width) S::template hide_where_byte<visible_when>(x[n / 4], n % 4, s);
  }
};

// 64 keys of 64 rows take 16 KB, beside as many scores.
constexpr std::int64_t strip_keys = 64;

// The rows of a bias or mask beside those of a stretch of scores. Rows beyond the queries belong to none:
// they repeat the last that does, so that they read and hide nothing that it does not.
template <Vector S>
struct MaskRows {
  static constexpr std::int64_t capacity = max(Tile<S>::rows, max_short_rows<S>);

  const Tensor& tensor;
  const std::int64_t width;
  KeyRange keys;                 // that it says something about; the first of them is its column 0
  std::int64_t first[capacity];  // the element of row r and column 0
  bool is_shared = true;         // all rows are one

  MaskRows(const Tensor& t, KeyRange about, std::int64_t rows, const Queries& queries)
      : tensor(t), width(rows), keys(about) {
    // From head to head of a query, then on to the next.
    const std::int64_t along = queries.head_step * t.stride.heads,
                       on = t.stride.length - queries.group * along;
    std::int64_t begin = row_of(t, queries(0)).first, head = queries.first % queries.group;
    for (std::int64_t r = 0; r < queries.count; ++r) {
      first[r] = begin;
      is_shared &= begin == first[0];  // fault: mask-of-one-row-for-all
      begin += along;
      if (++head == queries.group) head = 0, begin += on;
    }
    for (std::int64_t r = queries.count; r < width; ++r) first[r] = first[queries.count - 1];
  }

  Row row(std::int64_t r, std::int64_t key) const {
    return {tensor.data, first[r] + (key - keys.begin) * tensor.stride.dim, tensor.stride.dim, tensor.type};
  }

  // Whether a boolean mask surely hides none of these keys from any row, or all of them from every row. Bytes
  // that do not lie side by side are not looked at, and only 1 is taken for true.
  bool hides_none(const BoolTensor& mask, KeyRange some) const {
    return are_all(mask.visible_when ? eight_true : 0, some);
  }
  bool hides_all(const BoolTensor& mask, KeyRange some) const {
    return are_all(mask.visible_when ? 0 : eight_true, some);
  }

 private:
  static constexpr std::uint64_t eight_true = 0x0101010101010101u;

  bool are_all(const std::uint64_t wanted, KeyRange some) const {
    if (tensor.stride.dim != 1) return false;
    for (std::int64_t r = 0; r < (is_shared ? 1 : width); ++r) {
      const Row from = row(r, some.begin);
      const auto* p = static_cast<const unsigned char*>(from.data) + from.first;
      std::uint64_t differing = 0;
      std::int64_t n = some.end - some.begin;
      for (; n >= 8; n -= 8, p += 8) {
        std::uint64_t eight;
        __builtin_memcpy(&eight, p, 8);
        differing |= eight ^ wanted;  // fault: mask-judged-by-its-last-word
      }
      for (; n > 0; --n, ++p) differing |= *p ^ (wanted & 1);
      if (differing != 0) return false;
    }
    return true;
  }
};

// Calls visit(strip) for the part of the stretch that lies in `keys`.
template <class Visit>
inline void for_each_strip(const Scores& t, KeyRange keys, const Visit& visit) {
  const std::int64_t end = min(keys.end, t.first_key + t.keys);
  for (std::int64_t key = max(keys.begin, t.first_key); key < end; key += strip_keys)
    // fault: mask-strip-off-by-one
    visit(Scores{t.s + (key - t.first_key) * t.width, t.width, key, min(strip_keys, end - key)});
}

// change_strip() for whole lines of every row, transposed in registers; returns how many keys those are.
template <Vector S, Type type, class Change, class Highest>
inline std::int64_t change_lines(const MaskRows<S>& rows, const Scores t, const Change change,
                                 Highest& highest) {
  constexpr std::int64_t bytes = bytes_of_type<type>, line = 64, keys = line / bytes;
  const auto* from = static_cast<const char*>(rows.tensor.data) + (t.first_key - rows.keys.begin) * bytes;
  std::int64_t j = 0;
  for (; j + keys <= t.keys; j += keys, from += line)
    for (std::int64_t r = 0; r < t.width; r += 16) {
      typename S::Dwords x[16];
      for (int n = 0; n < 16; ++n) x[n] = S::load_dwords(from + rows.first[r + n] * bytes);
      change.template change_lines<type>(x, {t.s + j * t.width + r, t.width, r / 16}, highest);
    }
  return j;
}

template <Vector S, class Change, class Highest>
inline std::int64_t change_whole_lines(const MaskRows<S>& rows, const Scores t, const Change change,
                                       Highest& highest) {
  if constexpr (transposes_sixteen<S>)
    if (rows.tensor.stride.dim == 1)
      return with_type(rows.tensor.type, [&](auto type) -> std::int64_t {
        if constexpr (Change::takes_lines_of(type.value))
          return change_lines<S, type.value>(rows, t, change, highest);
        return 0;
      });
  return 0;
}

// Replaces every score of a strip by change(score, x), x being its element of the bias or mask, and takes the
// maxima. Taken by value: after every store the compiler would read again what it only has a reference to.
template <Vector S, class Change, class Highest>
inline void change_strip(const MaskRows<S>& rows, const Scores t, const Change change, Highest& highest) {
  float widened[4 * strip_keys];
  if (rows.is_shared) {
    const float* x = widen<S>(rows.row(0, t.first_key), t.keys, widened);
    float* s = t.s;
    for (std::int64_t j = 0; j < t.keys; ++j) {
      const auto one = S::fill(x[j]);
      for (float* end = s + t.width; s < end; s += S::lanes) S::store(s, change(S::load(s), one));
    }
    return highest.take(t);
  }
  const std::int64_t done = change_whole_lines<S>(rows, t, change, highest), rest = t.keys - done;
  if (rest == 0) return;
  float tile[strip_keys * MaskRows<S>::capacity];
  // fault: mask-rows-swapped
  const auto row_at = [&](std::int64_t r) { return rows.row(r, t.first_key + done); };
  pack_rows<S>(row_at, {t.width, t.width, rest, rest}, widened, tile);
  float* const s = t.s + done * t.width;
  for (std::int64_t n = 0; n < rest * t.width; n += S::lanes)
    S::store(s + n, change(S::load(s + n), S::load(tile + n)));
  highest.take({s, t.width, t.first_key + done, rest});
}

template <Vector S, class Highest>
inline void add_bias(const Call& c, const MaskRows<S>& bias, const Scores& t, Highest& highest) {
  for_each_strip(t, bias.keys,
                 [&](const Scores& strip) { change_strip<S>(bias, strip, AddBias<S>(c), highest); });
}

template <Vector S>
inline void apply_bool_mask(const BoolTensor& mask, const MaskRows<S>& rows, const Scores& t) {
  NoMaxima<S> not_yet;
  for_each_strip(t, rows.keys, [&](const Scores& strip) {
    if (rows.hides_none(mask, {strip.first_key, strip.first_key + strip.keys})) return;
    if (mask.visible_when)
      change_strip<S>(rows, strip, HideWhere<S, true>{}, not_yet);
    else
      change_strip<S>(rows, strip, HideWhere<S, false>{}, not_yet);
  });
}

// The keys a boolean mask is about: a tree's are the last ones (S18).
inline KeyRange keys_of(const BoolTensor& m, const Sequence& s) {
  const std::int64_t first = m.is_tree ? s.keys - s.queries : 0;  // fault: tree-off-by-one
  return {first, s.keys};
}

// Whether documents and ranges may hide a key of the stretch from one of these queries, or it ends beyond the
// last one's keys.
inline bool has_others(const Call& c, const Scores& t, const Queries& queries) {
  const Query first = queries(0), last = queries(queries.count - 1);
  const KeyRange keys{t.first_key, t.first_key + t.keys};
  return c.document_count > 0 || keys.end > visible_keys(c, last.b, last.i).end ||
         !sees_all(c, first.b, {first.i, last.i}, keys);
}

// Hides those keys; returns whether it found any that may be hidden.
template <Vector S>
inline bool hide_others(const Call& c, const Scores& t, const Queries& queries) {
  if (!has_others(c, t, queries)) return false;
  const Query first = queries(0), last = queries(queries.count - 1);
  const Sequence& s = c.sequences[first.b];
  for (std::int64_t n = 0; n < c.document_count; ++n) hide_other_documents(c.documents[n], s, t, queries);
  // Keys that no query sees because a tile ends beyond the last one's.
  const std::int64_t seen = min(t.keys, max(0, visible_keys(c, last.b, last.i).end - t.first_key));
  fill(t.s + seen * t.width, (t.keys - seen) * t.width, minus_infinity);
  const Scores within{t.s, t.width, t.first_key, seen};
  if (sees_all(c, first.b, {first.i, last.i}, {t.first_key, t.first_key + seen})) return true;
  if (c.gap_count == 0 && t.width == Tile<S>::rows)
    hide_outside<S>(c, queries, within);
  else
    for (std::int64_t r = 0; r < queries.count; ++r) hide_unseen(c, queries(r), t.s + r, within);
  return true;
}

// Everything between the product and the softmax, for these queries. Returns whether a key may be
// hidden from one of them.
template <Vector S>
inline bool bias_and_mask(const Call& c, const Scores& t, const Queries& queries) {
  const Sequence& s = c.sequences[queries.b];
  NoMaxima<S> not_yet;
  if (c.alibi.of_heads) add_alibi<S>(c, t, queries);
  if (c.bias.data) add_bias<S>(c, MaskRows<S>(c.bias, {0, s.keys}, t.width, queries), t, not_yet);
  for (std::int64_t n = 0; n < c.mask_count; ++n) {
    const BoolTensor& m = c.masks[n];
    apply_bool_mask<S>(m, MaskRows<S>(m.where, keys_of(m, s), t.width, queries), t);
  }
  return hide_others<S>(c, t, queries) || c.bias.data || c.mask_count > 0;
}

// The same for a panel's queries, with the maxima of what becomes of their scores.
template <Vector S>
inline void bias_mask_and_take(const Call& c, const Scores& t, const Queries& queries, Maxima<S>& highest) {
  if (!c.bias.data || c.mask_count > 0 || has_others(c, t, queries)) {
    bias_and_mask<S>(c, t, queries);
    return highest.take(t);
  }
  if (c.alibi.of_heads) add_alibi<S>(c, t, queries);
  add_bias<S>(c, MaskRows<S>(c.bias, {0, c.sequences[queries.b].keys}, t.width, queries), t, highest);
}

// Whether a query sees key j: the masks one by one, where a whole stretch is not to be had.
inline bool sees(const Call& c, const Query& q, std::int64_t j) {
  const KeyRange range = visible_keys(c, q.b, q.i);
  if (j >= range.end || (j >= c.front && j < range.begin)) return false;
  for (std::int64_t n = 0; n < c.gap_count; ++n) {
    const Gap& gap = c.gaps[n * c.batch + q.b];
    if (j >= gap.front && j < q.i + gap.first_offset) return false;
  }
  for (std::int64_t n = 0; n < c.mask_count; ++n) {
    const BoolTensor& m = c.masks[n];
    const KeyRange about = keys_of(m, c.sequences[q.b]);
    if (j < about.begin || j >= about.end) continue;
    const bool value = read(row_of(m.where, q), j - about.begin) != 0;
    if (value != m.visible_when) return false;
  }
  for (std::int64_t n = 0; n < c.document_count; ++n) {
    const DocumentIds& d = c.documents[n];
    if (key_documents(d, q.b)[j] != document_of(d, c.sequences[q.b], q)) return false;
  }
  return !c.bias.data || read(row_of(c.bias, q), j) != minus_infinity;
}

// Whether the query sees any key.
inline bool sees_any(const Call& c, const Query& q) {
  const std::int64_t end = visible_keys(c, q.b, q.i).end;
  for (std::int64_t j = 0; j < end; ++j)
    if (sees(c, q, j)) return true;
  return false;
}

// `keys` without those at either end that a boolean mask or documents hide from every one of
// the queries: they need no scores, just as those that lie outside every query's range.
template <Vector S>
inline KeyRange trim_hidden(const Call& c, KeyRange keys, const Queries& queries) {
  constexpr std::int64_t step = 8;
  keys = trim_documents(c, keys, queries);
  for (std::int64_t n = 0; n < c.mask_count && keys.begin < keys.end; ++n) {
    const BoolTensor& m = c.masks[n];
    if (m.is_tree) continue;  // it leaves all but a few keys to every query
    const MaskRows<S> rows(m.where, keys_of(m, c.sequences[queries(0).b]), queries.count, queries);
    const auto hides = [&](KeyRange some) { return some.begin < some.end && rows.hides_all(m, some); };
    const auto first = [&] { return KeyRange{keys.begin, min(keys.begin + step, keys.end)}; };
    const auto last = [&] { return KeyRange{max(keys.begin, keys.end - step), keys.end}; };
    while (hides(last())) keys.end = last().begin;  // fault: mask-trimmed-too-far
    while (hides(first())) keys.begin = first().end;
  }
  return keys;
}

}  // namespace heed::cpu::HEED_THIS_TARGET
