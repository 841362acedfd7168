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

  // Scores of `tile` keys. Keys that are not whole f32 rows, or not eight, go through k_rows; the last tile
  // repeats its last key, whose extra scores are never read.
  void score_tile(const Scores& t, std::int64_t j) {
    const Row first = row_of<S>(c.k, b, kv_head, t.first_key + j);
    Dots dots{q, at.rows, k_rows, depth, depth, s + j * at.rows, at.rows};
    if (in_place(first) && depth == c.dim && j + tile <= t.keys) {
      dots.k = static_cast<const float*>(first.data) + first.first;
      dots.k_stride = c.k.length;
      if (j + 2 * tile <= t.keys) dots.next = {dots.k + tile * c.k.length, c.k.length};
    } else {
      for (std::int64_t n = 0; n < tile; ++n) {
        const Row row = row_of<S>(c.k, b, kv_head, t.first_key + least(j + n, t.keys - 1));
        float* to = k_rows + n * depth;
        const float* x = widen<S>(row, c.dim, to);
        for (std::int64_t d = 0; x != to && d < c.dim; ++d) to[d] = x[d];
        for (std::int64_t d = c.dim; d < depth; ++d) to[d] = 0;
      }
    }
    for (std::int64_t r = 0; r < at.rows; r += S::lanes) {
      eight_dots<S>(dots);
      dots.q += S::lanes, dots.s += S::lanes, dots.next = {};
    }
  }

  static bool in_place(const Row& row) { return row.type == Type::f32 && row.step == 1; }

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
    auto depth_reached = S::fill(0.0f);
    for (std::int64_t n = 0; n < t.keys * at.rows; n += S::lanes)
      depth_reached = S::max(depth_reached, S::sub(S::fill(0.0f), S::load(s + n)));
    float lanes[S::lanes];
    S::store(lanes, depth_reached);
    bool any = false;
    for (int lane = 0; lane < S::lanes; ++lane)
      any |= !(lanes[lane] < -minus_infinity);  // NaN may hide an infinity
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

  // Adds the values of keys [j, j + stripe) to every row.
  void add_values(const Scores& t, std::int64_t j, bool partly_hidden, float* partial) {
    const std::int64_t keys = least(stripe, t.keys - j);
    const float* value[stripe];
    bool finite = true;
    for (std::int64_t n = 0; n < keys; ++n) {
      const Row row = row_of<S>(c.v, b, kv_head, t.first_key + j + n);
      value[n] = widen<S>(row, c.value_dim, v_rows + n * at.dims);
      if (partly_hidden) finite &= all_finite<S>(value[n], c.value_dim);
    }
    const float* p = s + j * at.rows;
    if (!finite) return add_values_carefully(p, unseen + j * at.rows, value, keys, partial);
    Upcoming next;  // the stripe after this one, touched row by row while this one's dimensions pass by
    if (in_place(row_of<S>(c.v, b, kv_head, 0)) && j + 2 * stripe <= t.keys)
      next = {value[0] + stripe * c.v.length, c.v.length};
    for (std::int64_t r = 0; r < count; r += 4, next = {}) {
      const Stripe part{p + r, value, keys, 0, at.out(partial, r), next};
      switch (least(4, count - r)) {
        case 1:
          add_rows<1>(part);
          break;
        case 2:
          add_rows<2>(part);
          break;
        case 3:
          add_rows<3>(part);
          break;
        default:
          add_rows<4>(part);
      }
    }
  }

  struct Stripe {
    const float* p;  // (keys, rows)
    const float* const* value;
    std::int64_t keys, d;
    float* out;
    Upcoming next;
  };

  // Every dimension of `rows` rows: four vectors at a time (a cache line of each value on NEON), then one,
  // then single dimensions, since nothing may be read beyond the end of a value.
  template <int rows>
  void add_rows(Stripe t) const {
    for (; t.d + 4 * S::lanes <= c.value_dim; t.d += 4 * S::lanes) add_stripe<rows, 4>(t);
    for (t.next = {}; t.d + S::lanes <= c.value_dim; t.d += S::lanes) add_stripe<rows, 1>(t);
    for (; t.d < c.value_dim; ++t.d)
      for (int r = 0; r < rows; ++r)
        for (std::int64_t n = 0; n < t.keys; ++n) {
          float& sum = t.out[r * at.dims + t.d];
          sum = __builtin_fmaf(t.p[n * at.rows + r], t.value[n][t.d], sum);
        }
  }

  template <int rows, int vectors>
  void add_stripe(const Stripe& t) const {
    typename S::F sum[rows][vectors];
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vectors; ++v) sum[r][v] = S::load(t.out + r * at.dims + t.d + v * S::lanes);
    const float* p = t.p;
    // One line of the next stripe per key, so that all its lines pass by while all dimensions of this one do.
    const std::int64_t lines = c.value_dim / 16, first_line = t.d / (4 * S::lanes) * stripe;
    const bool touches = t.next.rows && lines * 16 == c.value_dim;
    const float* row = touches ? t.next.rows + first_line / lines * t.next.stride : t.p;
    std::int64_t column = touches ? first_line % lines * 16 : 0;
    const std::int64_t width = touches ? c.value_dim : 16, row_stride = touches ? t.next.stride : 0;
    for (std::int64_t n = 0; n < t.keys; ++n, p += at.rows) {
      S::touch(row + column);
      column += 16;
      if (column == width) column = 0, row += row_stride;
      const auto four = S::load_four(p);
      for (int v = 0; v < vectors; ++v) {
        const auto x = S::load(t.value[n] + t.d + v * S::lanes);
        sum[0][v] = S::template fma_lane<0>(x, four, sum[0][v]);
        if constexpr (rows > 1) sum[1][v] = S::template fma_lane<1>(x, four, sum[1][v]);
        if constexpr (rows > 2) sum[2][v] = S::template fma_lane<2>(x, four, sum[2][v]);
        if constexpr (rows > 3) sum[3][v] = S::template fma_lane<3>(x, four, sum[3][v]);
      }
    }
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vectors; ++v) S::store(t.out + r * at.dims + t.d + v * S::lanes, sum[r][v]);
  }

  // For values that are not all finite: a key a row does not see must not touch it, not even by 0 * v (S4).
  void add_values_carefully(const float* p, const float* hidden, const float* const* value, std::int64_t keys,
                            float* partial) const {
    for (std::int64_t n = 0; n < keys; ++n)
      for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t d = 0; hidden[n * at.rows + r] == 0 && d < c.value_dim; ++d) {
          float& sum = at.out(partial, r)[d];
          sum = __builtin_fmaf(p[n * at.rows + r], value[n][d], sum);
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
