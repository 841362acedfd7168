// SPDX-License-Identifier: Apache-2.0
// Prefill's operands for BFMMLA: bf16 throughout, sums in f32. Everything is packed in fours of the summed
// index, as the instruction reads it:
//   queries  panels, each (depth / 4, rows, 4)
//   keys     tiles of eight, each (depth / 4, 8, 4)
//   values   tiles of eight dimensions, each (keys / 4, 8, 4)
//   weights  (keys / 4, rows, 4)
// Blocks begin at multiples of eight keys, so which keys make a four depends on nothing but their number
// (O1).
#pragma once
#include <cstdint>

#include "cpu/isa/neon_bf16.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector V>
struct PackedBf16 {
  using S = V;
  using Half = std::uint16_t;
  using Element = Half;
  using Halves = typename S::Halves;
  struct Use {};
  static constexpr int rows = Tile<V>::rows;
  static constexpr int key_step = Tile<V>::columns;
  static constexpr int dim_step = Tile<V>::columns;

  std::int64_t depth, dims;
  Half *q, *k, *v, *p;
  const std::int64_t dim, value_dim;
  // What bounds the products of packed queries, or keys: their largest magnitude, and the factor of scores.
  struct Known {
    Half magnitude = 0;
    float scale = 1;
  } known;
  Known key_known;          // of the present block
  std::int64_t padded = 0;  // keys of it, in whole tiles

  PackedBf16(const OperandExtents& e, Cutter& memory)
      : depth(round_up(e.dim, 8)),
        dims(round_up(e.value_dim, dim_step)),
        q(memory.cut_halves(e.panels * rows * depth)),
        k(memory.cut_halves(e.keys * depth)),
        v(memory.cut_halves(e.values * dims)),
        p(memory.cut_halves(e.values * rows)),
        dim(e.dim),
        value_dim(e.value_dim) {}

  void use_queries(Half* panels, Known of) { q = panels, known = of; }
  void use_keys(Half* packed, Known of) { k = packed, key_known = of; }
  void use_values(Half* tiles, std::int64_t count) { v = tiles, padded = round_up(count, key_step); }

  void pack_queries(std::int64_t panel, const RowAt auto& row_at, std::int64_t count, float scale) {
    known.scale = scale;  // applied to the scores: rounding a scaled query to bf16 would cost accuracy
    pack_pairs(row_at, count, rows, q + panel * rows * depth);
    known.magnitude = larger_magnitude(known.magnitude, q + panel * rows * depth, rows * depth);
  }

  bool may_exceed(float score) const {
    return score_may_exceed(score, {known.magnitude, key_known.magnitude}, depth, known.scale);
  }

  void pack_keys(const RowAt auto& row_at, std::int64_t count) {
    for (std::int64_t j = 0; j < count; j += key_step) {
      const auto key_at = [&](std::int64_t n) { return row_at(j + n); };
      const std::int64_t keys = min(key_step, count - j);
      if (keys == key_step && lie_side_by_side(key_at(0), key_at(key_step - 1), key_step))
        pack_columns(key_at(0), k + j * depth);
      else
        pack_pairs(key_at, keys, key_step, k + j * depth);
    }
    key_known.magnitude = larger_magnitude(0, k, round_up(count, key_step) * depth);
  }

  bool pack_values(const RowAt auto& row_at, std::int64_t count) {
    padded = round_up(count, key_step);
    bool poisoned = false;
    for (std::int64_t j = 0; j < padded; j += 4)
      if (pack_four_values(row_at, j, count)) {
        clear_poison(j);  // fault: bfmmla-poison-kept
        poisoned = true;
      }
    return poisoned;
  }

  void score(std::int64_t panel, std::int64_t first, std::int64_t keys, float* s) const {
    bf16_product<S, Start::zero>(
        {q + panel * rows * depth, k + first * depth, key_step * depth, keys / key_step, depth, known.scale},
        s);
  }

  void add_values(std::int64_t first, std::int64_t keys, const float* s, float* out) const {
    Half* four = p;
    for (std::int64_t j = 0; j < keys; j += 4)
      for (int r = 0; r < rows; r += S::lanes, four += 4 * S::lanes)
        S::store_rounded(s + j * rows + r, rows, four);
    bf16_product<S, Start::sum>({p, v + first * dim_step, padded * dim_step, dims / dim_step, keys}, out);
  }

 private:
  // Of `so_far` and of n halves, a multiple of 8.
  static Half larger_magnitude(Half so_far, const Half* x, std::int64_t n) {
    Halves largest = S::no_halves();
    for (std::int64_t i = 0; i < n; i += 8) largest = S::larger_magnitude(largest, S::load_halves(x + i));
    const Half found = S::largest(largest);
    return found > so_far ? found : so_far;
  }

  // Elements d ... d + 7 of a row of n, zeros beyond its end.
  static Halves eight(const Row& row, std::int64_t d, std::int64_t n) {
    const Half* from = static_cast<const Half*>(row.data) + row.first;
    if (row.step == 1 && d + 8 <= n) return S::load_halves(from + d / 16 * row.block + d % 16);
    Half copy[8] = {};
    for (std::int64_t e = d; e < min(d + 8, n); ++e)
      copy[e - d] = from[e / 16 * row.block + e % 16 * row.step];
    return S::load_halves(copy);
  }

  // Rows of queries or keys, two at a time; those beyond `count` become zero.
  void pack_pairs(const RowAt auto& row_at, std::int64_t count, std::int64_t width, Half* to) const {
    for (std::int64_t r = 0; r < width; r += 2) {
      const Row even = row_at(min(r, count - 1)), odd = row_at(min(r + 1, count - 1));
      Half* pair = to + r * 4;
      for (std::int64_t d = 0; d < depth; d += 8, pair += 8 * width)
        S::store_pair(eight(even, r < count ? d : dim, dim), eight(odd, r + 1 < count ? d : dim, dim), pair,
                      pair + 4 * width);
    }
  }

  void pack_columns(const Row& first, Half* to) const {
    const Half* from = static_cast<const Half*>(first.data) + first.first;
    for (std::int64_t d = 0; d < depth; d += 4, to += 4 * key_step) {
      Halves line[4];
      for (std::int64_t n = 0; n < 4; ++n)
        // fault: bfmmla-cached-dimension
        line[n] = d + n < dim ? S::load_halves(from + (d + n) * first.step) : S::no_halves();
      S::store_transposed(line, to);
    }
  }

  // Packs keys j ... j + 3; returns whether they hold a NaN or an infinity.
  bool pack_four_values(const RowAt auto& row_at, std::int64_t j, std::int64_t count) const {
    const auto present = [&](std::int64_t n) { return row_at(min(j + n, count - 1)); };
    const Row row[4] = {present(0), present(1), present(2), present(3)};
    Half* to = v + j * dim_step;
    const std::int64_t tile_stride = padded * dim_step;
    Halves largest = S::no_halves();
    for (std::int64_t d = 0; d < dims; d += dim_step, to += tile_stride) {
      Halves x[4];
      for (std::int64_t n = 0; n < 4; ++n) {
        x[n] = eight(row[n], j + n < count ? d : value_dim, value_dim);
        largest = S::larger_magnitude(largest, x[n]);
      }
      S::store_transposed(x, to);
    }
    return S::holds_poison(largest);
  }

  void clear_poison(std::int64_t j) const {
    for (std::int64_t d = 0; d < dims; d += dim_step)
      for (Half *x = v + d * padded + j * dim_step, *end = x + 4 * dim_step; x < end; x += 8)
        S::store_halves(x, S::finite_or_zero(S::load_halves(x)));
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
