// SPDX-License-Identifier: Apache-2.0
// Attention for a few rows over many keys: keys and values are read where they lie, once for all query heads
// that share them. Scores have rows on the lanes and outputs have dimensions on the lanes, so both stay
// single FMA chains in the same order as prefill's: the bits agree (O1).
#pragma once
#include <cstdint>

#include "cpu/algorithm/dots.hpp"
#include "cpu/algorithm/dropout.hpp"
#include "cpu/algorithm/exp2.hpp"
#include "cpu/algorithm/finish.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/score.hpp"
#include "cpu/algorithm/softmax.hpp"
#include "cpu/call.hpp"

namespace heed::cpu {

// What a chunk of keys leaves behind: max and sum per row, then out (rows, dims). Sizes in floats.
template <class S>
struct PartialLayout {
  std::int64_t rows, dims;

  explicit PartialLayout(const Call& c)
      : rows(round_up(c.group() * c.queries, most(S::lanes, 4))), dims(round_up(c.value_dim, 4 * S::lanes)) {}
  std::int64_t floats() const { return rows * (2 + dims); }
  float* max(float* partial) const { return partial; }
  float* sum(float* partial) const { return partial + rows; }
  float* out(float* partial, std::int64_t row) const { return partial + 2 * rows + row * dims; }
};

template <class S>
class Decode {
  static constexpr int tile = keys_per_dots;
  static constexpr std::int64_t stripe = 32;  // keys whose values pass the first-level cache together

 public:
  static std::int64_t scratch_floats(const Call& c) {
    const PartialLayout<S> layout(c);
    const std::int64_t depth = round_up(c.dim, 4);
    return depth * layout.rows + 2 * block_keys * layout.rows + tile * depth + stripe * layout.dims;
  }

  Decode(const Call& call, const Rows& task, float* memory)
      : c(call),
        b(task.batch_entry),
        kv_head(task.kv_head),
        at(call),
        depth(round_up(call.dim, 4)),
        count(call.group() * call.queries) {
    q = memory;
    s = q + depth * at.rows;
    unseen = s + block_keys * at.rows;
    k_rows = unseen + block_keys * at.rows;
    v_rows = k_rows + tile * depth;
  }

  // Attends to keys [chunk, chunk + chunk_keys) and writes the state they leave.
  void run(std::int64_t chunk, float* partial) {
    fill<S>(at.max(partial), at.rows, minus_infinity);
    fill<S>(at.sum(partial), at.rows + at.rows * at.dims, 0.0f);
    pack_queries();
    const KeyRange seen{visible_keys<S>(c, b, 0).begin, visible_keys<S>(c, b, c.queries - 1).end};
    const std::int64_t end = least(chunk + chunk_keys, seen.end);
    for (std::int64_t block = chunk; block < end; block += block_keys) {
      const Scores t{s, at.rows, most(block, seen.begin),
                     least(block + block_keys, end) - most(block, seen.begin)};
      if (t.keys <= 0) continue;
      for (std::int64_t j = 0; j < t.keys; j += tile) score_tile(t, j);
      refine(t);
      const bool partly_hidden = note_unseen(t);
      advance_rows(t, partial);
      if (c.drop_below)
        for (int r = 0; r < count; ++r) apply_dropout<S>(c, query(r), r, t);
      for (std::int64_t j = 0; j < t.keys; j += stripe) add_values(t, j, partly_hidden, partial);
    }
  }

  // Merges the chunks' states in order and writes the rows.
  void finish(float* partials, std::int64_t chunks) {
    float* total =
        partials;  // the first chunk is the total so far: merging it into an empty state changes nothing
    for (std::int64_t n = 1; n < chunks; ++n) merge_rows(total, partials + n * at.floats());
    for (int r = 0; r < count; ++r) {
      const Query n = query(r);
      const float factor = close_row<S>(c, n, at.max(total)[r], at.sum(total)[r]);
      const Row out = row_of<S>(c.out, n.b, n.h, n.i);
      for (std::int64_t d = 0; d < c.value_dim; ++d) write<S>(out, d, at.out(total, r)[d] * factor + 0.0f);
    }
  }

 private:
  Query query(std::int64_t r) const { return {b, c.head(kv_head, r % c.group()), r / c.group()}; }

  // (depth, rows), scaled: one vector of rows per dimension.
  void pack_queries() {
    const auto row_at = [&](std::int64_t r) {
      const Query n = query(r);
      return row_of<S>(c.q, n.b, n.h, n.i);
    };
    pack_rows<S>(row_at, count, at.rows, c.dim, depth, k_rows, q);
    for (std::int64_t n = 0; n < depth * at.rows; n += S::lanes)
      S::store(q + n, S::mul(S::load(q + n), S::fill(c.scale_log2e)));
  }

  // Scores of `tile` keys. Where eight whole rows lie as eight_dots can take them, they are read in place.
  void score_tile(const Scores& t, std::int64_t j) {
    const bool in_place = c.k.dim == 1 && depth == c.dim && j + tile <= t.keys;
    if (in_place && c.k.type == Type::f32) return score_in_place<Type::f32>(t, j);
    if (in_place && c.k.type == Type::bf16 && dots_take<S, Type::bf16>)
      return score_in_place<Type::bf16>(t, j);
    if (in_place && c.k.type == Type::f16 && dots_take<S, Type::f16>) return score_in_place<Type::f16>(t, j);
    for (std::int64_t n = 0; n < tile;
         ++n) {  // the last tile repeats its last key, whose extra scores are never read
      const Row row = row_of<S>(c.k, b, kv_head, t.first_key + least(j + n, t.keys - 1));
      float* to = k_rows + n * depth;
      const float* x = widen<S>(row, c.dim, to);
      for (std::int64_t d = 0; x != to && d < c.dim; ++d) to[d] = x[d];
      for (std::int64_t d = c.dim; d < depth; ++d) to[d] = 0;
    }
    score_rows<Type::f32>({q, at.rows, k_rows, depth, depth, s + j * at.rows, at.rows});
  }

  template <Type type>
  void score_in_place(const Scores& t, std::int64_t j) {
    if constexpr (dots_take<S, type>) {
      Dots dots{q, at.rows, element(c.k, t.first_key + j), c.k.length, depth, s + j * at.rows, at.rows};
      if (j + 2 * tile <= t.keys) dots.next = {element(c.k, t.first_key + j + tile), c.k.length};
      score_rows<type>(dots);
    }
  }

  template <Type type>
  void score_rows(Dots dots) {
    for (std::int64_t r = 0; r < at.rows; r += S::lanes) {
      eight_dots<S, type>(dots);
      dots.q += S::lanes, dots.s += S::lanes, dots.next = {};
    }
  }

  // Where row j of this task's keys or values begins.
  const void* element(const Tensor& x, std::int64_t j) const {
    const Row row = row_of<S>(x, b, kv_head, j);
    return static_cast<const char*>(row.data) + row.first * (row.type == Type::f32 ? 4 : 2);
  }

  void refine(const Scores& t) {
    if (c.softcap_log2e != 0) apply_softcap<S>(c, t);
    const KeyRange low = visible_keys<S>(c, b, 0), high = visible_keys<S>(c, b, c.queries - 1);
    const bool full = high.begin <= t.first_key && t.first_key + t.keys <= low.end;
    if (full && !c.bias.data && !c.mask_count) return;
    for (int r = 0; r < count; ++r) bias_and_mask<S>(c, query(r), visible_keys<S>(c, b, query(r).i), r, t);
  }

  // Whether any score is -inf; if so, marks which, because weights do not tell a key that is unseen from one
  // that is faint.
  bool note_unseen(const Scores& t) {
    auto found = S::fill(0.0f);  // by comparison, not by a minimum: a NaN beside an infinity must not hide it
    for (std::int64_t n = 0; n < t.keys * at.rows; n += S::lanes)
      found = S::less(S::fill(minus_infinity), S::load(s + n), found, S::fill(1.0f));
    float lanes[S::lanes];
    S::store(lanes, found);
    bool any = false;
    for (int lane = 0; lane < S::lanes; ++lane) any |= lanes[lane] != 0;
    for (std::int64_t n = 0; any && n < t.keys * at.rows; ++n)
      unseen[n] = s[n] == minus_infinity ? 1.0f : 0.0f;
    return any;
  }

  // advance() of softmax.hpp for any number of row vectors, with out lying (rows, dims).
  void advance_rows(const Scores& t, float* partial) {
    using F = typename S::F;
    for (std::int64_t r = 0; r < at.rows; r += S::lanes) {
      const F before = S::load(at.max(partial) + r);
      F max = before;
      for (std::int64_t j = 0; j < t.keys; ++j) max = S::max(max, S::load(s + j * at.rows + r));
      S::store(at.max(partial) + r, max);
      max = finite_max<S>(max);
      const F factor = exp2<S>(S::sub(before, max));
      F sum = S::mul(S::load(at.sum(partial) + r), factor);
      for (std::int64_t j = 0; j < t.keys; j += 4) {
        F p[4];
        const int real = static_cast<int>(least(4, t.keys - j));
        for (int n = 0; n < 4; ++n) p[n] = S::sub(S::load(s + (j + (n < real ? n : 0)) * at.rows + r), max);
        exp2<S>(p);
        for (int n = 0; n < real; ++n) {
          S::store(s + (j + n) * at.rows + r, p[n]);
          sum = S::add(sum, p[n]);
        }
      }
      S::store(at.sum(partial) + r, sum);
      float factors[S::lanes];
      S::store(factors, factor);
      for (int lane = 0; lane < S::lanes; ++lane)
        if (factors[lane] != 1.0f)
          for (std::int64_t d = 0; d < at.dims; d += S::lanes) {
            float* out = at.out(partial, r + lane) + d;
            S::store(out, S::mul(S::load(out), S::fill(factors[lane])));
          }
    }
  }

  // Adds the values of keys [j, j + stripe) to every row; in place where they lie side by side and none is
  // hidden.
  void add_values(const Scores& t, std::int64_t j, bool partly_hidden, float* partial) {
    Stripe part{.p = s + j * at.rows, .keys = least(stripe, t.keys - j), .partial = partial};
    if (c.v.dim == 1 && !partly_hidden) {
      for (std::int64_t n = 0; n < part.keys; ++n) part.value[n] = element(c.v, t.first_key + j + n);
      // The stripe after this one is touched row by row while this one's dimensions pass by.
      if (j + 2 * stripe <= t.keys) part.next = {element(c.v, t.first_key + j + stripe), c.v.length};
      if (c.v.type == Type::f32) return add_groups<Type::f32>(part);
      if (c.v.type == Type::bf16) return add_groups<Type::bf16>(part);
      return add_groups<Type::f16>(part);
    }
    bool finite = true;
    for (std::int64_t n = 0; n < part.keys; ++n) {
      const Row row = row_of<S>(c.v, b, kv_head, t.first_key + j + n);
      const float* x = widen<S>(row, c.value_dim, v_rows + n * at.dims);
      finite &= all_finite<S>(x, c.value_dim);
      part.value[n] = x;
    }
    if (finite) return add_groups<Type::f32>(part);
    add_values_carefully(part, unseen + j * at.rows);
  }

  struct Stripe {
    const float* p;  // (keys, rows)
    const void* value[stripe] = {};
    std::int64_t keys;
    float* partial;
    Upcoming next{};
  };

  template <Type type>
  void add_groups(Stripe& t) const {
    for (std::int64_t r = 0; r < count; r += 4, t.next = {}) {
      const std::int64_t left = count - r;
      if (left >= 4)
        add_rows<type, 4>(t, r);
      else if (left == 3)
        add_rows<type, 3>(t, r);
      else if (left == 2)
        add_rows<type, 2>(t, r);
      else
        add_rows<type, 1>(t, r);
    }
  }

  // Every dimension of `rows` rows: four vectors at a time (a cache line of f32 values on NEON), then one,
  // then single dimensions, since nothing may be read beyond the end of a value.
  template <Type type, int rows>
  void add_rows(const Stripe& t, std::int64_t r) const {
    std::int64_t d = 0;
    for (; d + 4 * S::lanes <= c.value_dim; d += 4 * S::lanes) add_stripe<type, rows, 4>(t, r, d);
    for (; d + S::lanes <= c.value_dim; d += S::lanes) add_stripe<type, rows, 1>(t, r, d);
    for (; d < c.value_dim; ++d)
      for (int n = 0; n < rows; ++n)
        for (std::int64_t j = 0; j < t.keys; ++j) {
          float& sum = at.out(t.partial, r + n)[d];
          sum = __builtin_fmaf(t.p[j * at.rows + r + n], read<S>(Row{t.value[j], 0, 1, type}, d), sum);
        }
  }

  template <Type type>
  static typename S::F load_value(const void* row, std::int64_t d) {
    if constexpr (type == Type::f32) return S::load(static_cast<const float*>(row) + d);
    if constexpr (type == Type::bf16) return S::load_bf16(static_cast<const std::uint16_t*>(row) + d);
    if constexpr (type == Type::f16) return S::load_f16(static_cast<const std::uint16_t*>(row) + d);
  }

  template <Type type, int rows, int vectors>
  void add_stripe(const Stripe& t, std::int64_t first_row, std::int64_t d) const {
    typename S::F sum[rows][vectors];
    float* out = at.out(t.partial, first_row) + d;
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vectors; ++v) sum[r][v] = S::load(out + r * at.dims + v * S::lanes);
    const float* p = t.p + first_row;
    Touch touch = touch_for<type>(t, d);
    for (std::int64_t n = 0; n < t.keys; ++n, p += at.rows) {
      touch.next();
      const auto four = S::load_four(p);
      for (int v = 0; v < vectors; ++v) {
        const auto x = load_value<type>(t.value[n], d + v * S::lanes);
        sum[0][v] = S::template fma_lane<0>(x, four, sum[0][v]);
        if constexpr (rows > 1) sum[1][v] = S::template fma_lane<1>(x, four, sum[1][v]);
        if constexpr (rows > 2) sum[2][v] = S::template fma_lane<2>(x, four, sum[2][v]);
        if constexpr (rows > 3) sum[3][v] = S::template fma_lane<3>(x, four, sum[3][v]);
      }
    }
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vectors; ++v) S::store(out + r * at.dims + v * S::lanes, sum[r][v]);
  }

  // Walks the cache lines of the next stripe, row after row.
  struct Touch {
    const char* row;
    std::int64_t column, width, row_stride;  // bytes

    void next() {
      S::touch(row + column);
      column += 64;
      if (column == width) column = 0, row += row_stride;
    }
  };

  // A stripe has so many keys as one pass over a quarter-line slice has steps: with f32 all its lines pass by
  // while all dimensions of this one do; with 16 bits, whose slices are half as many lines, twice over.
  template <Type type>
  Touch touch_for(const Stripe& t, std::int64_t d) const {
    constexpr std::int64_t bytes = type == Type::f32 ? 4 : 2;
    const std::int64_t width = c.value_dim * bytes, lines = width / 64;
    if (!t.next.rows || lines * 64 != width) return {reinterpret_cast<const char*>(t.p), 0, 64, 0};
    const std::int64_t line = d / (4 * S::lanes) * stripe % (lines * stripe);
    return {static_cast<const char*>(t.next.rows) + line / lines * t.next.stride * bytes, line % lines * 64,
            width, t.next.stride * bytes};
  }

  // For values that are not all finite: a key a row does not see must not touch it, not even by 0 * v (S4).
  void add_values_carefully(const Stripe& t, const float* hidden) const {
    for (std::int64_t n = 0; n < t.keys; ++n)
      for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t d = 0; hidden[n * at.rows + r] == 0 && d < c.value_dim; ++d) {
          float& sum = at.out(t.partial, r)[d];
          sum = __builtin_fmaf(t.p[n * at.rows + r], static_cast<const float*>(t.value[n])[d], sum);
        }
  }

  // merge() of softmax.hpp with out lying (rows, dims).
  void merge_rows(float* total, float* part) {
    using F = typename S::F;
    for (std::int64_t r = 0; r < at.rows; r += S::lanes) {
      const F before = S::load(at.max(total) + r), other = S::load(at.max(part) + r),
              max = S::max(before, other);
      const F subtract = finite_max<S>(max);
      float a[S::lanes], z[S::lanes];
      S::store(a, exp2<S>(S::sub(before, subtract)));
      S::store(z, exp2<S>(S::sub(other, subtract)));
      S::store(at.max(total) + r, max);
      S::store(at.sum(total) + r,
               S::fma(S::load(at.sum(part) + r), S::load(z), S::mul(S::load(at.sum(total) + r), S::load(a))));
      for (int lane = 0; lane < S::lanes; ++lane)
        for (std::int64_t d = 0; d < at.dims; d += S::lanes) {
          float* out = at.out(total, r + lane) + d;
          const F scaled = S::mul(S::load(out), S::fill(a[lane]));
          S::store(out, S::fma(S::load(at.out(part, r + lane) + d), S::fill(z[lane]), scaled));
        }
    }
  }

  const Call& c;
  const std::int64_t b, kv_head;
  const PartialLayout<S> at;
  const std::int64_t depth, count;
  float *q, *s, *unseen, *k_rows, *v_rows;
};

}  // namespace heed::cpu
