// SPDX-License-Identifier: Apache-2.0
// Pairs of a tile of queries of one head and a tile of keys, in the registers of a block's warps: their
// scores, and what these become in a backward pass.
//
//   S = Q K^T     dP = dO V^T     P = 2^(S - log-sum-exp)     dS = P * (dP - delta)
//
// Options come one after the other: a call passes the code of those alone that it has, since every branch is
// the same for all threads. Pairs of a thread have a bit each in a word: which are seen, and which drop.
#pragma once
#include <cstdint>

#include "cuda/backward/mask.cuh"
#include "cuda/backward/pairs.cuh"
#include "cuda/general/products.cuh"
#include "cuda/general/scores.cuh"
#include "cuda/general/sources.cuh"
#include "softmax/philox.hpp"

namespace heed::cuda::general {

// What a stage of pairs can do: ranges of keys alone, or every option.
enum class PairStage : std::uint8_t { ranges, every_option };

constexpr PairStage stage_of(const Call& c) {
  return has_only_ranges(c) && c.drop_below == 0 ? PairStage::ranges : PairStage::every_option;
}

// A step: queries of a head, and keys that some of them may see.
struct PairTiles {
  int b, head;
  int first_query, first_row, first_key;  // first_row: of q, where packed sequences share it
  int first_offset, end_offset, key_count, queries;

  PairTiles() = default;
  HEED_DEVICE PairTiles(const Call& c, int entry, int of_head, int query, int key)
      : b(entry), head(of_head), first_query(query), first_key(key) {
    const Sequence& s = c.sequence(b);
    first_row = static_cast<int>(s.first_query) + query, key_count = static_cast<int>(s.key_count);
    first_offset = static_cast<int>(s.first_offset), end_offset = static_cast<int>(s.end_offset);
    queries = static_cast<int>(s.queries);
  }
  // Other queries of the sequence, and the same keys.
  HEED_DEVICE PairTiles with(int of_head, int query) const {
    PairTiles x = *this;
    x.head = of_head, x.first_row += query - first_query, x.first_query = query;
    return x;
  }
  // Keys [begin, end) that a query sees by its range, besides the front.
  HEED_DEVICE int begin(int i) const { return i + first_offset; }
  HEED_DEVICE int end(int i) const { return min_of(i + end_offset, key_count); }
  // Of a tensor of queries, the step's first row.
  HEED_DEVICE Row first_of(const Tensor& t) const { return row_of(t, b, head, first_row); }
};

// What the rows of a step have to themselves. Those beyond the last give nothing (G6).
template <int rows, PairStage stage>
struct StepRows {
  static constexpr bool has_rest = stage == PairStage::every_option;  // what a softcap wants

  float lse[rows], delta[rows], rest[has_rest ? rows : 1];
  bool all_give[rows / 32];  // of 32 rows each

  // What a thread has for its row, on its way from memory.
  struct One {
    float lse = -minus_infinity, delta = 0, rest = 0;
  };
  HEED_DEVICE static One find(const GradientCall& g, const PairTiles& step) {
    const int n = thread_index();
    if (n >= rows || step.first_query + n >= step.queries) return {};
    const std::int64_t row = g.row(step.b, step.head, step.first_row + n);
    return {g.rows.log_sum_exp[row], g.rows.delta[row], g.rows.rest[row]};
  }
  HEED_DEVICE void put(const One& of) {
    const int n = thread_index();
    if (n >= rows) return;
    lse[n] = of.lse, delta[n] = of.delta;
    if constexpr (has_rest) rest[n] = of.rest;
    all_give[n / 32] = all_of_warp(of.lse != -minus_infinity);
  }
  HEED_DEVICE bool has(int n) const { return lse[n] != -minus_infinity; }
  HEED_DEVICE bool has_all() const {
    bool all = true;
#pragma unroll
    for (int n = 0; n < rows / 32; ++n) all = all && all_give[n];
    return all;
  }
};

// Rows of a tensor, as many as a tile has from this one on, on their way to shared memory.
struct RowsToCopy {
  const Tensor& tensor;
  Row first;
  int dim;     // of a row, from the first number on
  bool in_16;  // they can be copied 16 bytes at a time
};
// `are_all_valid`: what is_valid(r) says of every row; zeros take the place of one that is not.
template <class Copy, class IsValid>
HEED_DEVICE void copy_tile(SharedAddress to, const RowsToCopy& from, bool are_all_valid,
                           const IsValid& is_valid) {
  const Tensor& t = from.tensor;
  static_assert(Copy::step % 8 == 0);  // a thread's piece is in the same place of all its rows
  to += place_of<Copy::pieces * 16>(Copy::row(0), Copy::piece()) - Copy::place(0);
  if (from.in_16 && are_all_valid && from.dim >= Copy::pieces * 8) {
    const auto* const at = static_cast<const std::uint16_t*>(t.data) + from.first.first +
                           Copy::row(0) * t.stride.length + Copy::piece() * 8;
    const std::int64_t step = Copy::step * t.stride.length;
#pragma unroll
    for (int n = 0; n < Copy::copies; ++n) prefetch16(to + Copy::place(n), at + n * step, true);
    return;
  }
  Copy::run(
      to, from.dim, from.in_16,
      [&](int r) -> Row {
        return {t.data, from.first.first + max_of(r, 0) * t.stride.length, t.stride.dim, t.type, 0};
      },
      is_valid);
}

// Where the operands of a step are in shared memory. A bias of 16 bits waits where P will be: a thread reads
// of it what it overwrites.
struct PairOperands {
  SharedAddress q, k, out_gradient, v, p;
};

template <class Shape>
class PairGradients {
  using Layout = typename Shape::Scores;
  using Bits = std::uint32_t;
  using Rows = StepRows<Shape::rows, Shape::stage>;
  using Operand = ItemsAsRows<Shape::pitch>;
  static_assert(Layout::numbers <= 32 || Shape::stage == PairStage::ranges);

 public:
  using Pairs = typename Layout::Sums;
  // In shared memory, for the step at hand.
  using Mask = KeyBits[Shape::stage == PairStage::every_option ? Shape::keys : 1];

  HEED_DEVICE PairGradients(const Call& call, const MaskTiles& tiles, Mask& of_step)
      : c(call), mask(tiles), step_mask(of_step) {}

  // What the options of a step need, on its way to shared memory.
  HEED_DEVICE void prefetch(const PairTiles& step, SharedAddress bias, bool bias_in_16) const {
    if (!mask.is_empty()) prefetch_mask(step);
    if (!c.bias.data || !has_16_bits(c.bias.type)) return;
    const int queries = step.queries - step.first_query;
    Row first = step.first_of(c.bias);
    first.first += step.first_key * c.bias.stride.dim;
    using Copy = RowCopy<Shape::threads, Shape::rows, Shape::keys, Shape::score_pitch>;
    const int keys = static_cast<int>(c.sequence(step.b).keys) - step.first_key;
    copy_tile<Copy>(bias, {c.bias, first, keys, bias_in_16}, queries >= Shape::rows,
                    [&](int r) { return r < queries; });
  }

  // Whether masks let any query of the step see any key. For all threads at once.
  HEED_DEVICE bool sync_and_look() const {
    if (mask.is_empty()) {
      sync();
      return true;
    }
    // What a thread has copied itself: others' copies may still be in flight.
    const int each = keys_of_thread(), first = thread_index() * each;
    std::uint32_t seen = 0;
    for (int n = first; n < min_of(first + each, Shape::keys); ++n)
      seen |= step_mask[n].word[0] | step_mask[n].word[1];
    return any(seen != 0);
  }

  // What scores pass on: the gradient by the product, or by the score that a softcap has made of it.
  enum class By : std::uint8_t { product, score };

  template <By by>
  HEED_DEVICE void find(Pairs& p, Pairs& ds, const PairOperands& from, const PairTiles& step,
                        const Rows& rows) const {
    Layout::clear(p), Layout::clear(ds);
    add_products<Shape::type, Shape::dim / 16>(p, Operand::on_rows(from.q, Layout::first_row()),
                                               Operand::on_columns(from.k, Layout::first_column()));
    if constexpr (Shape::stage == PairStage::ranges) weigh(p, rows);  // among the products of dP
    add_products<Shape::type, Shape::dim / 16>(ds, Operand::on_rows(from.out_gradient, Layout::first_row()),
                                               Operand::on_columns(from.v, Layout::first_column()));
    if constexpr (Shape::stage == PairStage::every_option) {
      differentiate_options<by>(p, ds, from, step, rows);
    } else {
      if (!is_whole(step)) hide(p, ds, step, rows);
      differentiate(p, ds, rows);
    }
  }

 private:
  static constexpr bool has_16_bits(Type type) { return type == Type::bf16 || type == Type::f16; }

  HEED_DEVICE static Bits bit(int m, int n, int e) {
    return Bits{1} << (4 * (m * Layout::column_tiles + n) + e);
  }
  template <class Visit>
  HEED_DEVICE static void each_row(const Visit& visit) {
#pragma unroll
    for (int m = 0; m < Layout::row_tiles; ++m) visit(m, 0), visit(m, 1);
  }
  // Pairs e of products n: one of every four.
  template <class Visit>
  HEED_DEVICE static void each_of_row(int r, const Visit& visit) {
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; ++n) visit(n, 2 * r), visit(n, 2 * r + 1);
  }
  template <class Visit>
  HEED_DEVICE static void each_pair(const Visit& visit) {
    each_row([&](int m, int r) { each_of_row(r, [&](int n, int e) { visit(m, n, e); }); });
  }

  // Whose bits a thread brings: 16 bytes, or those that it finds itself.
  HEED_DEVICE int keys_of_thread() const { return mask.words ? 2 : 1; }
  HEED_DEVICE void prefetch_mask(const PairTiles& step) const {
    const int n = thread_index();
    if (!mask.words) {  // too many to be packed
      const int into = step.first_query % MaskTiles::queries;
      const Query first{step.b, step.head, step.first_query - into, step.first_row - into};
      if (n < Shape::keys) step_mask[n] = key_bits(c, first, step.first_key + n, false);
      return;
    }
    if (n >= Shape::keys / 2) return;
    const KeyBits* const from =
        mask.tile(step.b, step.head, step.first_query / MaskTiles::queries, step.first_key / MaskTiles::keys);
    prefetch16(shared_address(step_mask + 2 * n), from + step.first_key % MaskTiles::keys + 2 * n, true);
  }

  HEED_DEVICE static bool is_whole(const PairTiles& step) {
    return step.begin(step.first_query + Shape::rows - 1) <= step.first_key &&
           step.end(step.first_query) >= step.first_key + Shape::keys;
  }

  // Of what 2 is raised to: P and dS are operands, 2^lift as large as they are, and so are the sums.
  HEED_DEVICE static float lifted(float exponent) {
    // fault: cuda-gradient-not-lifted
    return Shape::type == Type::f16 ? exponent + lift<Shape::type> : exponent;
  }

  // Products become weights, of keys that are not seen, too.
  HEED_DEVICE void weigh(Pairs& p, const Rows& rows) const {
    const float scale = c.scaling.query;
    each_row([&](int m, int r) {
      const float base = lifted(-rows.lse[Layout::row(m, r)]);
      each_of_row(r, [&](int n, int e) { p[m][n][e] = fast_exp2(fmaf(p[m][n][e], scale, base)); });
    });
  }
  // Pairs that are not seen: their weights are 0, and their dS will be, whatever their values are.
  HEED_DEVICE void hide(Pairs& p, Pairs& dp, const PairTiles& step, const Rows& rows) const {
    each_row([&](int m, int r) {
      const float delta = rows.delta[Layout::row(m, r)];
      const int i = step.first_query + Layout::row(m, r), first = step.first_key + Layout::column(0);
      const int begin = step.begin(i) - first, end = step.end(i) - first;
      each_of_row(r, [&](int n, int e) {
        const int j = 8 * n + e % 2;
        // fault: cuda-gradient-of-hidden-keys
        if (j < begin || j >= end) p[m][n][e] = 0, dp[m][n][e] = delta;
      });
    });
  }
  HEED_DEVICE void hide(Pairs& p, Pairs& dp, Bits seen, const Rows& rows) const {
    each_row([&](int m, int r) {
      const float delta = rows.delta[Layout::row(m, r)];
      each_of_row(r, [&](int n, int e) {
        if (!(seen & bit(m, n, e))) p[m][n][e] = 0, dp[m][n][e] = delta;
      });
    });
  }
  // dP becomes dS.
  HEED_DEVICE void differentiate(const Pairs& p, Pairs& ds, const Rows& rows) const {
    each_row([&](int m, int r) {
      const float delta = rows.delta[Layout::row(m, r)];
      each_of_row(r, [&](int n, int e) { ds[m][n][e] = p[m][n][e] * (ds[m][n][e] - delta); });
    });
  }

  // With every option.
  template <By by>
  HEED_DEVICE void differentiate_options(Pairs& p, Pairs& ds, const PairOperands& from, const PairTiles& step,
                                         const Rows& rows) const {
    const bool changes_scores = c.softcap.cap != 0 || c.alibi.of_heads || c.bias.data;
    const bool sees_all = is_whole(step) && mask.is_empty() && !changes_scores;
    const Bits seen = sees_all ? ~Bits{0} : masked(in_ranges(step, rows), step), drop = dropped(step);
    // fault: cuda-gradient-of-dropped-delta
    if (c.drop_below > 0) drop_pairs(ds, drop);
    if (changes_scores) {
      differentiate_changed<by>(p, ds, from, step, rows, seen);
    } else {
      weigh(p, rows);
      if (!sees_all) hide(p, ds, seen, rows);
      differentiate(p, ds, rows);
    }
    if (c.drop_below > 0) drop_pairs(p, drop);
  }
  HEED_DEVICE void drop_pairs(Pairs& x, Bits drop) const {
    each_pair(
        [&](int m, int n, int e) { x[m][n][e] = drop & bit(m, n, e) ? 0.0f : x[m][n][e] * c.keep_scale; });
  }
  template <By by>
  HEED_DEVICE void differentiate_changed(Pairs& p, Pairs& ds, const PairOperands& from, const PairTiles& step,
                                         const Rows& rows, Bits seen) const {
    each_row([&](int m, int r) {
      const float delta = rows.delta[Layout::row(m, r)];
      each_of_row(r, [&](int n, int e) { ds[m][n][e] = ds[m][n][e] - delta; });
    });
    each_pair([&](int m, int n, int e) { p[m][n][e] = infinity_to_nan(p[m][n][e] * c.scaling.query); });
    const bool has_cap = c.softcap.cap != 0;
    if (has_cap) cap<by>(p, ds, rows);
    add_biases(p, from.p, step);
    each_row([&](int m, int r) {
      const float base = lifted(has_cap ? 0.0f : -rows.lse[Layout::row(m, r)]);
      each_of_row(r, [&](int n, int e) {
        float &x = p[m][n][e], &y = ds[m][n][e];
        const bool is_seen = (seen & bit(m, n, e)) != 0 && x != minus_infinity;
        x = is_seen ? fast_exp2(x + base) : 0.0f;
        y = is_seen ? x * y : 0.0f;
      });
    });
  }

  // A row that gives nothing to anybody sees nothing.
  HEED_DEVICE Bits in_ranges(const PairTiles& step, const Rows& rows) const {
    Bits seen = 0;
    each_row([&](int m, int r) {
      const int row = Layout::row(m, r), i = step.first_query + row,
                first = step.first_key + Layout::column(0);
      const int begin = step.begin(i) - first, end = rows.has(row) ? step.end(i) - first : 0,
                front = static_cast<int>(c.front) - first;
      each_of_row(r, [&](int n, int e) {
        const int j = 8 * n + e % 2;
        if (j < end && (j >= begin || j < front)) seen |= bit(m, n, e);
      });
    });
    return seen;
  }
  HEED_DEVICE Bits masked(Bits seen, const PairTiles& step) const {
    if (mask.is_empty()) return seen;
    const int word = (step.first_query % MaskTiles::queries + Layout::first_row()) / 32;
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::uint32_t of_key = step_mask[Layout::column(n) + e].word[word];
        each_row([&](int m, int r) {
          if (!(of_key >> Layout::row(m, r) % 32 & 1)) seen &= ~bit(m, n, 2 * r + e);
        });
      }
    return seen;
  }

  // Which weights drop (drops() in tile/row.cuh). Two neighbouring lanes have the four keys that share a
  // draw, in the same two rows: each draws for one row and passes on what is the other's.
  HEED_DEVICE Bits dropped(const PairTiles& step) const {
    if (c.drop_below == 0) return 0;
    const auto below = static_cast<std::uint32_t>(c.drop_below);  // the probability is less than 1
    const int is_odd = lane_index() % 2;
    Bits drop = 0;
#pragma unroll
    for (int m = 0; m < Layout::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Layout::column_tiles; ++n) {
        const auto [x] = softmax::dropout_words(c.seed, step.b * static_cast<int>(c.heads) + step.head,
                                                step.first_query + Layout::row(m, is_odd),
                                                (step.first_key + Layout::column(n)) / 4);
        Bits own = 0;  // bit k: key k of the four
#pragma unroll
        for (int k = 0; k < 4; ++k) own |= Bits{x[k] < below} << k;
        const Bits other = shuffle_xor(own, 1), of_first = is_odd ? other : own,
                   of_second = is_odd ? own : other;
        const Bits four = (of_first >> 2 * is_odd & 3) | (of_second >> 2 * is_odd & 3) << 2;
        drop |= four << 4 * (m * Layout::column_tiles + n);
      }
    return drop;
  }

  // Scores less the log-sum-exp; the slope is in ds. Both are much larger than their difference wherever a
  // weight counts: it is computed of all that is known of them.
  template <By by>
  HEED_DEVICE void cap(Pairs& s, Pairs& ds, const Rows& rows) const {
    each_row([&](int m, int r) {
      const float lse = rows.lse[Layout::row(m, r)], rest = rows.rest[Layout::row(m, r)];
      each_of_row(r, [&](int n, int e) {
        const float t = fast_tanh(s[m][n][e] * c.softcap.argument);
        // fault: cuda-gradient-without-slope
        if (by == By::product) ds[m][n][e] *= fmaf(-t, t, 1.0f);
        s[m][n][e] = fmaf(t, c.softcap.cap, -lse) + fmaf(t, c.softcap.rest, -rest);
      });
    });
  }

  // As with_bias() in tile/row.cuh has it.
  HEED_DEVICE void add_biases(Pairs& s, SharedAddress bias, const PairTiles& step) const {
    if (!c.alibi.of_heads && !c.bias.data) return;
    each_pair([&](int m, int n, int e) {
      if (fabsf(s[m][n][e]) > 0x1p73f) s[m][n][e] = __builtin_nanf("");
    });
    if (c.alibi.of_heads) add_slopes(s, step);
    if (!c.bias.data) return;
    if (c.bias.type == Type::bf16)
      add_bias<Type::bf16>(s, bias);
    else if (c.bias.type == Type::f16)
      add_bias<Type::f16>(s, bias);
    else
      add_wide_bias(s, step);
  }
  HEED_DEVICE void add_slopes(Pairs& s, const PairTiles& step) const {
    const Sequence& of = c.sequence(step.b);
    const float slope = -c.alibi.of_heads[step.b * c.alibi.step + step.head],
                below = c.bias.data ? __builtin_nanf("") : -max_finite;
    const auto shift = static_cast<int>(c.alibi.queries_are_last ? of.keys - of.queries : 0);
    each_row([&](int m, int r) {
      const int distance = step.first_query + Layout::row(m, r) + shift - step.first_key - Layout::column(0);
      each_of_row(r, [&](int n, int e) {
        const float far = fabsf(static_cast<float>(distance - 8 * n - e % 2)),
                    lost = fmaf(slope * far, c.scaling.unit, s[m][n][e]);
        s[m][n][e] = lost < -max_finite ? below : lost;
      });
    });
  }
  // A bias of -inf hides, and no other does (S3).
  HEED_DEVICE float with_bias(float s, float bias) const {
    return bias < -max_finite ? minus_infinity : max_or_nan(-max_finite, fmaf(bias, c.scaling.unit, s));
  }
  template <Type type>
  HEED_DEVICE void add_bias(Pairs& s, SharedAddress bias) const {
    each_row([&](int m, int r) {
#pragma unroll
      for (int n = 0; n < Layout::column_tiles; ++n) {
        const std::uint32_t both =
            load_shared4(bias + Layout::template place_of_pair<Shape::score_pitch>(m, r, n));
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto bits = static_cast<std::uint16_t>(both >> 16 * e);
          float& x = s[m][n][2 * r + e];
          x = with_bias(x, type == Type::bf16 ? from_bf16(bits) : from_f16(bits));
        }
      }
    });
  }
  HEED_DEVICE void add_wide_bias(Pairs& s, const PairTiles& step) const {
    const Sequence& of = c.sequence(step.b);
    const int last_row = static_cast<int>(of.queries) - step.first_query - 1,
              last_key = static_cast<int>(of.keys) - 1;
    each_row([&](int m, int r) {
      const Row row = row_of(c.bias, step.b, step.head, step.first_row + min_of(Layout::row(m, r), last_row));
      each_of_row(r, [&](int n, int e) {
        const int j = min_of(step.first_key + Layout::column(n) + e % 2, last_key);
        s[m][n][e] = with_bias(s[m][n][e], read(row, j));
      });
    });
  }

  const Call& c;
  const MaskTiles& mask;
  Mask& step_mask;
};

}  // namespace heed::cuda::general
