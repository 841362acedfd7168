// SPDX-License-Identifier: Apache-2.0
// Prefill's operands for AMX: bf16 throughout, sums in f32. Scores come out (keys, rows) and outputs (dims,
// rows), so rows lie on the lanes as everywhere else: keys are the first operand as they lie, queries and
// weights the second, in pairs; values are transposed so that a dimension's keys lie side by side.
#pragma once
#include <cstdint>

#include "cpu/algorithm/operands.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/simd/amx.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct AmxParts {
  static constexpr int rows = Tile<Amx>::rows;
  static constexpr int key_step = 32;
  static constexpr int dim_step = 32;

  std::int64_t depth, dims;
  std::int64_t length;  // of a line of values: the keys there is room for
  std::uint16_t *q, *k, *v, *p;  // (panels, depth/2, rows, 2), (keys, depth), (dims, keys), (keys/2, rows, 2)
  std::uint16_t* row_copy;

  AmxParts(const OperandExtents& e, Cutter& memory)
      : depth(round_up(e.dim, 32)),
        dims(round_up(e.value_dim, dim_step)),
        length(e.values),
        q(memory.cut_halves(e.panels * rows * depth)),
        k(memory.cut_halves(e.keys * depth)),
        v(memory.cut_halves(length * dims)),
        p(memory.cut_halves(length * rows)),
        row_copy(memory.cut_halves(32 * most(depth, dims))) {}
};

struct Bf16Amx : AmxParts {
  using S = Amx;
  using Half = std::uint16_t;
  using Element = Half;
  using Parts = AmxParts;
  using Use = AmxTiles;

  const std::int64_t dim, value_dim;
  // What the products ask of queries, or keys, that were packed: the largest magnitude, and what scores are
  // multiplied with.
  struct Known {
    Half most = 0;
    float scale = 1;
  } known;
  Known key_known;  // of the present block

  Bf16Amx(const OperandExtents& e, const Parts& parts) : Parts(parts), dim(e.dim), value_dim(e.value_dim) {}

  void use_queries(Half* panels, Known of) { q = panels, known = of; }
  void use_keys(Half* packed, Known of) { k = packed, key_known = of; }
  void use_values(Half* lines, std::int64_t) { v = lines; }

  // The row as contiguous halves, padded with zeros to `width`. A cache's values lie in sixteens.
  const Half* halves(const Row& row, std::int64_t n, std::int64_t width, Half* copy) const {
    const Half* from = static_cast<const Half*>(row.data) + row.first;
    if (row.step == 1 && row.block == 16 && n == width) return from;
    std::int64_t d = 0;
    for (; row.step == 1 && d + 16 <= n; d += 16)
      __builtin_memcpy(copy + d, from + d / 16 * row.block, 16 * sizeof(Half));
    for (; d < width; ++d) copy[d] = d < n ? from[d / 16 * row.block + d % 16 * row.step] : Half{0};
    return copy;
  }

  void pack_queries(std::int64_t panel, const RowAt auto& row_at, std::int64_t count, float scale) {
    known.scale = scale;  // applied to the scores: rounding a scaled query to bf16 would cost accuracy
    Half* to = q + panel * rows * depth;
    for (std::int64_t r = 0; r < rows; r += 16) {
      const Half* row[16] = {};
      for (std::int64_t n = 0; n < 16 && r + n < count; ++n)
        row[n] = halves(row_at(r + n), dim, depth, row_copy + n * depth);
      turn_to_pairs(row, depth, rows, to + 2 * r);
    }
    known.most = larger_magnitude(known.most, to, rows * depth);
  }

  bool may_overflow() const { return score_may_overflow(known.most, key_known.most, depth, known.scale); }

  void pack_keys(const RowAt auto& row_at, std::int64_t count) {
    for (std::int64_t j = 0; j < round_up(count, key_step); j += 16) {
      if (j + 16 <= count && lie_side_by_side(row_at(j), row_at(j + 15), 16))
        turn_keys(row_at(j), k + j * depth);
      else
        copy_keys(row_at, j, count);
    }
    key_known.most = larger_magnitude(0, k, round_up(count, key_step) * depth);
  }

  // Of `so_far` and of n halves, a multiple of 32.
  static Half larger_magnitude(Half so_far, const Half* x, std::int64_t n) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i most = _mm512_set1_epi16(static_cast<short>(so_far));
    for (std::int64_t i = 0; i < n; i += 32)
      most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    Half lanes[32];
    _mm512_storeu_si512(lanes, most);
    for (const Half lane : lanes) so_far = lane > so_far ? lane : so_far;
    return so_far;
  }

  void copy_keys(const RowAt auto& row_at, std::int64_t first, std::int64_t count) {
    for (std::int64_t j = first; j < first + 16; ++j) {
      Half* to = k + j * depth;
      if (j < count)
        __builtin_memcpy(to, halves(row_at(j), dim, depth, row_copy), static_cast<std::size_t>(depth) * 2);
      else
        __builtin_memset(to, 0, static_cast<std::size_t>(depth) * 2);
    }
  }

  void turn_keys(const Row& first, Half* to) const {
    const Half* from = static_cast<const Half*>(first.data) + first.first;
    const auto line = [&](std::int64_t d) { return d < dim ? from + d * first.step : no_halves; };
    for (std::int64_t d = 0; d < depth; d += 32) {
      __m512i pair[16];
      for (int n = 0; n < 16; ++n) pair[n] = pair_of(line(d + 2 * n), line(d + 2 * n + 1));
      transpose_dwords(pair);
      for (std::int64_t n = 0; n < 16; ++n) _mm512_storeu_si512(to + n * depth + d, pair[n]);
    }
  }

  // Whether a row of values, padded to dims, holds a NaN or an infinity.
  bool is_poisoned(const Half* x) const {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 bad = 0;
    for (std::int64_t d = 0; d < dims; d += 32)
      bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(x + d), exponent), exponent);
    return bad != 0;
  }

  // Rows that are short, strided or poisoned are copied, NaN and infinities as 0; the others are read where
  // they lie.
  bool pack_values(const RowAt auto& row_at, std::int64_t count) {
    bool poisoned = false;
    for (std::int64_t j = 0; j < round_up(count, key_step); j += 32) {
      const Half* value[32];
      for (std::int64_t n = 0; n < 32; ++n) {
        Half* copy = row_copy + n * dims;
        value[n] = copy;
        if (j + n < count) value[n] = halves(row_at(j + n), value_dim, dims, copy);
        const bool missing = j + n >= count, bad = !missing && is_poisoned(value[n]);
        for (std::int64_t d = 0; (missing || bad) && d < dims; ++d)
          copy[d] = missing || (value[n][d] & 0x7f80) == 0x7f80 ? Half{0} : value[n][d];
        if (bad) value[n] = copy, poisoned = true;
      }
      for (std::int64_t d = 0; d < dims; d += 16) {
        __m512i pair[16];
        for (int n = 0; n < 16; ++n) pair[n] = pair_of(value[2 * n] + d, value[2 * n + 1] + d);
        transpose_dwords(pair);
        for (std::int64_t n = 0; n < 16; ++n) _mm512_storeu_si512(v + (d + n) * length + j, pair[n]);
      }
    }
    return poisoned;
  }

  void score(std::int64_t panel, std::int64_t first, std::int64_t keys, float* s) const {
    // Block by block, in the first-level cache, and one behind the products, so that neither waits for the
    // other.
    for (std::int64_t j = 0; j < keys; j += key_step) {
      block_product({k + (first + j) * depth, depth * 2, q + panel * rows * depth, depth}, s + j * rows);
      if (j > 0) scale_all<S>(s + (j - key_step) * rows, key_step * rows, known.scale);
    }
    scale_all<S>(s + (keys - key_step) * rows, key_step * rows, known.scale);
  }

  void add_values(std::int64_t first, std::int64_t keys, const float* s, float* out) const {
    for (std::int64_t j = 0; j < keys; j += 2)
      for (int r = 0; r < rows; r += S::lanes)
        _mm512_storeu_si512(p + j * rows + 2 * r,
                            rounded_pair(S::load(s + j * rows + r), S::load(s + (j + 1) * rows + r)));
    for (std::int64_t d = 0; d < dims; d += dim_step)
      add_block_product({v + d * length + first, length * 2, p, keys}, out + d * rows);
  }

 private:
  static constexpr Half no_halves[16] = {};
};

}  // namespace heed::cpu::HEED_THIS_TARGET
