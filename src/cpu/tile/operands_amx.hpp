// SPDX-License-Identifier: Apache-2.0
// Prefill's operands for AMX: bf16 throughout, sums in f32. Scores come out (keys, rows) and outputs (dims,
// rows), so rows lie on the lanes as everywhere else: keys are the first operand as they lie, queries and
// weights the second, in pairs; values are transposed so that a dimension's keys lie side by side.
#pragma once
#include <cstdint>

#include "cpu/isa/amx.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct Bf16Amx {
  using S = Amx;
  using Half = std::uint16_t;
  using Element = Half;
  using Use = AmxTiles;
  static constexpr int rows = Tile<Amx>::rows;
  static constexpr int key_step = 32;
  static constexpr int dim_step = 16;

  std::int64_t depth, dims;
  std::int64_t length;  // of a line of values: the keys that fit
  Half *q, *k, *v, *p;  // (panels, depth/2, rows, 2), (keys, depth), (dims, keys), (keys/2, rows, 2)
  std::int64_t copy_width;
  Half* row_copy;  // (32, copy_width)
  // Packing has 11 % of tasks of 192 rows with 16 threads, 3 % of those of 1024 with one (a Xeon, November
  // 2026).
  static constexpr double packing_rows = 24;

  const std::int64_t dim, value_dim;
  // What bounds the products of packed queries, or keys: their largest magnitude, and the factor of scores.
  struct Known {
    Half magnitude = 0;
    float scale = 1;
  } known;
  Known key_known;      // of the present block
  const Half* keys_at;  // k, or the caller's

  Bf16Amx(const OperandExtents& e, Cutter& memory)
      : depth(round_up(e.dim, 32)),
        dims(round_up(e.value_dim, dim_step)),
        length(e.values),
        q(memory.cut_halves(e.panels * rows * depth)),
        k(memory.cut_halves(e.keys * depth)),
        v(memory.cut_halves(length * dims)),
        p(memory.cut_halves(length * rows)),
        copy_width(round_up(max(depth, dims), 32)),
        row_copy(memory.cut_halves(32 * copy_width)),
        dim(e.dim),
        value_dim(e.value_dim),
        keys_at(k) {}

  void use_queries(Half* panels, Known of) { q = panels, known = of; }
  void use_keys(Half* packed, Known of) { keys_at = k = packed, key_known = of; }
  void use_values(Half* lines, std::int64_t) { v = lines; }

  // The first n elements of a row side by side: in place, or in `copy`. A cache's values lie in sixteens.
  static const Half* side_by_side(const Row& row, std::int64_t n, Half* copy) {
    const Half* from = static_cast<const Half*>(row.data) + row.first;
    if (is_contiguous(row)) return from;
    std::int64_t d = 0;
    for (; row.step == 1 && d + 16 <= n; d += 16)
      __builtin_memcpy(copy + d, from + d / 16 * row.block, 16 * sizeof(Half));
    for (; d < n; ++d) copy[d] = from[d / 16 * row.block + d % 16 * row.step];
    return copy;
  }

  void pack_queries(std::int64_t panel, const RowAt auto& row_at, std::int64_t count, float scale) {
    known.scale = scale;  // applied to the scores: rounding a scaled query to bf16 would cost accuracy
    Half* to = q + panel * rows * depth;
    for (std::int64_t r = 0; r < rows; r += 16) {
      const Half* row[16] = {};
      for (std::int64_t n = 0; n < 16 && r + n < count; ++n)
        row[n] = side_by_side(row_at(r + n), dim, row_copy + n * copy_width);
      transpose_to_pairs(row, dim, rows, to + 2 * r);
    }
    known.magnitude = larger_magnitude(known.magnitude, to, rows * depth);
  }

  bool may_exceed(float score) const {
    return score_may_exceed(score, {known.magnitude, key_known.magnitude}, depth, known.scale);
  }

  // Where keys lie as they would be packed, in whole lines and tiles, as a cache's never do. With 16 threads
  // to copy them takes 3 % of 12 heads of 1024 x 64, and 7 of 128 x 64 (a Xeon, November 2026).
  bool take_keys(const RowAt auto& row_at, std::int64_t count) {
    const Row first = row_at(0), last = row_at(count - 1);
    const Half* from = static_cast<const Half*>(first.data) + first.first;
    const bool is_packed = is_contiguous(first) && first.data == last.data &&
                           last.first - first.first == (count - 1) * depth && depth == dim;
    if (!is_packed || count % key_step != 0 || reinterpret_cast<std::uintptr_t>(from) % 64 != 0) return false;
    keys_at = from;
    key_known.magnitude = larger_magnitude(0, from, count * depth);
    return true;
  }

  void pack_keys(const RowAt auto& row_at, std::int64_t count) {
    keys_at = k;
    for (std::int64_t j = 0; j < round_up(count, key_step); j += 16) {
      if (j + 16 <= count && lie_side_by_side(row_at(j), row_at(j + 15), 16))
        rotate_keys(row_at(j), k + j * depth);
      else
        copy_keys(row_at, j, count);
    }
    key_known.magnitude = larger_magnitude(0, k, round_up(count, key_step) * depth);
  }

  // Of `so_far` and of n halves, a multiple of 32.
  static Half larger_magnitude(Half so_far, const Half* x, std::int64_t n) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i largest = _mm512_set1_epi16(static_cast<short>(so_far));
    for (std::int64_t i = 0; i < n; i += 32)
      largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    Half lanes[32];
    _mm512_storeu_si512(lanes, largest);
    for (const Half lane : lanes) so_far = lane > so_far ? lane : so_far;
    return so_far;
  }

  void copy_keys(const RowAt auto& row_at, std::int64_t first, std::int64_t count) {
    for (std::int64_t j = first; j < first + 16; ++j) {
      Half* to = k + j * depth;
      const Half* row = j < count ? side_by_side(row_at(j), dim, row_copy) : nullptr;
      for (std::int64_t d = 0; d < depth; d += 32)
        _mm512_storeu_si512(to + d, row ? first_halves(row + d, dim - d) : _mm512_setzero_si512());
    }
  }

  void rotate_keys(const Row& first, Half* to) const {
    const Half* from = static_cast<const Half*>(first.data) + first.first;
    const auto line = [&](std::int64_t d) { return d < dim ? from + d * first.step : no_halves; };
    for (std::int64_t d = 0; d < depth; d += 32) {
      __m512i pair[16];
      for (int n = 0; n < 16; ++n) pair[n] = pair_of(line(d + 2 * n), line(d + 2 * n + 1));
      transpose_dwords(pair);
      for (std::int64_t n = 0; n < 16; ++n) _mm512_storeu_si512(to + n * depth + d, pair[n]);
    }
  }

  static __mmask32 are_no_numbers(__m512i x) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
  }

  // A value in whole lines of sixteen: where it lies, or in `copy`, NaN and infinities as 0.
  const Half* in_lines(const Half* value, Half* copy, bool& poisoned) const {
    __mmask32 bad = 0;
    for (std::int64_t d = 0; d < value_dim; d += 32)
      bad |= are_no_numbers(first_halves(value + d, value_dim - d));
    if (bad == 0 && value_dim == dims) return value;
    poisoned |= bad != 0;
    for (std::int64_t d = 0; d < value_dim; d += 32) {
      const __m512i x = first_halves(value + d, value_dim - d);
      _mm512_storeu_si512(copy + d, _mm512_maskz_mov_epi16(~are_no_numbers(x), x));
    }
    return copy;
  }

  bool pack_values(const RowAt auto& row_at, std::int64_t count) {
    bool poisoned = false;
    for (std::int64_t j = 0; j < round_up(count, key_step); j += 32) {
      const Half* value[32];
      for (std::int64_t n = 0; n < 32; ++n) {
        Half* copy = row_copy + n * copy_width;
        value[n] = copy;
        if (j + n < count)
          value[n] = in_lines(side_by_side(row_at(j + n), value_dim, copy), copy, poisoned);
        else
          __builtin_memset(copy, 0, static_cast<std::size_t>(dims) * sizeof(Half));
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
    score_in_strips(panel, first, keys, s, [=, this](std::int64_t j, std::int64_t count) {
      if (known.scale != 1) scale_all<S>(s + j * rows, count * rows, known.scale);
    });
  }

  // Products only, of which finish() makes scores: block by block, in the first-level cache, and one behind
  // the products, so that neither waits for the other.
  template <class Finish>
  void score_in_strips(std::int64_t panel, std::int64_t first, std::int64_t keys, float* s,
                       const Finish& finish) const {
    for (std::int64_t j = 0; j < keys; j += key_step) {
      block_product<Start::zero>({keys_at + (first + j) * depth, depth * 2, q + panel * rows * depth, depth},
                                 s + j * rows);
      if (j > 0) finish(j - key_step, std::int64_t{key_step});
    }
    finish(keys - key_step, std::int64_t{key_step});
  }

  void add_values(std::int64_t first, std::int64_t keys, const float* s, float* out) const {
    for (std::int64_t j = 0; j < keys; j += 2)
      for (int r = 0; r < rows; r += S::lanes)
        store_rounded(j, r, S::load(s + j * rows + r), S::load(s + (j + 1) * rows + r));
    add_rounded(first, keys, out);
  }

  // weigh_chains() of softmax.hpp, but for where the weights go: they are not read again to be rounded.
  // meanwhile() is called for every chain.
  template <class Meanwhile>
  void weigh(const float* s, std::int64_t keys, const Weighing<S>& by, const Meanwhile& meanwhile) const {
    static_assert(S::panel_vectors == 2 && key_step % chain_keys == 0);
    for (std::int64_t chain = 0; chain < keys; chain += chain_keys) {
      meanwhile();
      S::F sum[2] = {S::fill(0.0f), S::fill(0.0f)};
      for (std::int64_t j = chain; j < chain + chain_keys; j += 2) {
        S::F x[4];  // two keys of two vectors
        for (int n = 0; n < 4; ++n) x[n] = S::sub(S::load(s + j * rows + n * S::lanes), by.max[n % 2]);
        exp2<S>(x, by.power);
        for (int n = 0; n < 4; ++n) sum[n % 2] = S::add(sum[n % 2], x[n]);
        for (int n = 0; n < 2; ++n) store_rounded(j, n * S::lanes, x[n], x[n + 2]);
      }
      for (int n = 0; n < 2; ++n) by.sum[n] = S::add(by.sum[n], sum[n]);
    }
  }

  void add_rounded(std::int64_t first, std::int64_t keys, float* out) const {
    for (std::int64_t d = 0; d < dims; d += dim_step)
      half_block_product<Start::sum>({v + d * length + first, length * 2, p, keys}, out + d * rows);
  }

 private:
  // The weights of keys j and j + 1, for the rows of a vector from row r on.
  void store_rounded(std::int64_t j, int r, S::F even, S::F odd) const {
    _mm512_storeu_si512(p + j * rows + 2 * r, rounded_pair(even, odd));
  }

  static constexpr Half no_halves[16] = {};
};

}  // namespace heed::cpu::HEED_THIS_TARGET
