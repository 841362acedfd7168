// SPDX-License-Identifier: Apache-2.0
// Decode's operands for AMX: sixteen rows at the most, so keys and values are read once and whatever is done
// to them counts. Rows of keys are the first operand where they lie. What lies in pairs of lines, a cache's
// keys and all values, becomes the second operand by zipping two lines; then a tile of scores or sums comes
// out transposed, and is transposed back: sixteen lines for a whole key's depth, or for a whole block of keys,
// instead of every operand. Every sum has the order of operands_amx.hpp, so the bits agree (O3).
#pragma once
#include <cstdint>

#include "cpu/algorithm/operands.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/amx.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct AmxFewParts {
  static constexpr int rows = Tile<NarrowAmx>::rows;
  static constexpr int key_step = 32;
  static constexpr int dim_step = 32;
  static constexpr int most_zipped = 64;  // dimensions, whose sums are four tiles
  static_assert(rows == 16);

  std::int64_t depth, dims;
  std::uint16_t *q_rows, *q_pairs;  // (panels, rows, depth), (panels, depth / 2, rows, 2)
  std::uint16_t *k, *p;             // sixteens of keys; (rows, keys)
  std::uint16_t* zipped;            // twice 32 values of 64 dims: (dims / 16, values / 2, 16, 2)
  std::uint16_t* value_copy;        // (keys, dims): values that do not lie in whole lines

  AmxFewParts(const OperandExtents& e, Cutter& memory)
      : depth(round_up(e.dim, 32)),
        dims(round_up(e.value_dim, dim_step)),
        q_rows(memory.cut_halves(e.panels * rows * depth)),
        q_pairs(memory.cut_halves(e.panels * rows * depth)),
        k(memory.cut_halves(block_keys * depth)),
        p(memory.cut_halves(block_keys * rows)),
        zipped(memory.cut_halves(2 * 32 * most_zipped)),
        value_copy(memory.cut_halves(block_keys * dims)) {}
};

struct Bf16AmxFew : AmxFewParts {
  using S = NarrowAmx;
  using Half = std::uint16_t;
  using Parts = AmxFewParts;
  using Use = AmxTiles;

  const std::int64_t dim, value_dim;
  float scale = 1;

  Bf16AmxFew(const OperandExtents& e, const Parts& parts)
      : Parts(parts), dim(e.dim), value_dim(e.value_dim) {}

  void pack_queries(std::int64_t panel, const RowAt auto& row_at, std::int64_t count, float times) {
    scale = times;
    Half* to = q_rows + panel * rows * depth;
    const Half* row[rows];
    for (std::int64_t r = 0; r < rows; ++r) {
      row[r] = to + r * depth;
      copy_row(row_at(least(r, count - 1)), r < count ? dim : 0, depth, to + r * depth);
    }
    turn_to_pairs(row, depth, rows, q_pairs + panel * rows * depth);
  }

  // Keys are read where they lie: to look at sixteen scores is less than to look at the key of each.
  static bool may_exceed(float) { return true; }

  // Keys and values that come `ahead` later are on their way to the second-level cache while those before
  // them are zipped: a cache of 32768 keys decodes in 1.36 ms instead of 1.62 (Xeon, 16 threads, November
  // 2026).
  void pack_keys(const RowAt auto& row_at, std::int64_t count) {
    for (std::int64_t j = 0; j < round_up(count, key_step); j += 16)
      sixteen[j / 16] = j + 16 <= count ? pack_sixteen(row_at, j) : Keys{};
    for (std::int64_t j = 0; j < round_up(count, key_step); ++j)
      if (!sixteen[j / 16].at)
        copy_row(row_at(least(j, count - 1)), j < count ? dim : 0, depth, k + j * depth);
  }

  // Values are zipped when they are added: only then is it known which are NaN or infinite.
  bool pack_values(const RowAt auto& row_at, std::int64_t count) {
    for (std::int64_t j = 0; j < round_up(count, key_step); j += 16)
      values[j / 16] = find_values(row_at, j, count);
    return false;
  }

  void score(std::int64_t panel, std::int64_t first, std::int64_t keys, float* s) const {
    for (std::int64_t j = 0; j < keys; j += 32) score_both(panel * rows * depth, first + j, s + j * rows);
    scale_all<S>(s, keys * rows, scale);
  }

  // Returns whether a value was poison, which it then left out.
  bool add_values(std::int64_t first, std::int64_t keys, const float* s, float* out) const {
    for (std::int64_t j = 0; j < keys; j += 16) {
      __m512i x[16];
      for (int n = 0; n < 16; ++n) x[n] = _mm512_castps_si512(S::load(s + (j + n) * rows));
      transpose_dwords(x);
      for (std::int64_t r = 0; r < rows; ++r)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + r * block_keys + j),
                            reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_castsi512_ps(x[r]))));
    }
    bool poisoned = false;
    std::int64_t d = 0;
    for (; d + 64 <= dims; d += 64) poisoned |= add_dims<4>(first, keys, d, out + d * rows);
    if (d < dims) poisoned |= add_dims<2>(first, keys, d, out + d * rows);
    return poisoned;
  }

 private:
  static constexpr std::int64_t ahead = 32;  // keys

  // Sixteen keys: rows `stride` bytes apart, or pairs of lines; null: copied to k as rows. And where rows lie
  // that come later, or these again.
  struct Keys {
    const Half* at = nullptr;
    std::int64_t stride = 0;
    bool in_pairs = false;
    const Half* next = nullptr;
  };
  // Sixteen values: dimensions d ... d + 15 of value n, of so many, lie at + n * stride + d / 16 * block. And
  // where values lie alike that come later, or these again.
  struct Values {
    const Half* at;
    std::int64_t dims, stride, block;
    const Half* next;
  };

  static const Half* begin_of(const Row& row) { return static_cast<const Half*>(row.data) + row.first; }

  // n halves of it, and zeros.
  static void copy_row(const Row& row, std::int64_t n, std::int64_t width, Half* to) {
    const Half* from = begin_of(row);
    if (row.step == 1 && row.block == 16)
      __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(Half));
    else
      for (std::int64_t d = 0; d < n; ++d) to[d] = from[d / 16 * row.block + d % 16 * row.step];
    __builtin_memset(to + n, 0, static_cast<std::size_t>(width - n) * sizeof(Half));
  }

  // Sixteen rows from a multiple of 16 on lie evenly, in a cache's tile as in a tensor; how far apart, or 0
  // if they do not, or not in whole lines. To look each up would cost two divisions by the page size.
  static std::int64_t stride_of(const Row& first, const Row& second, const Row& last) {
    const std::int64_t stride = second.first - first.first;
    const bool is_even = first.data == last.data && first.first + 15 * stride == last.first;
    return is_even && first.step == 1 ? stride : 0;
  }

  Keys pack_sixteen(const RowAt auto& row_at, std::int64_t j) const {
    const Row first = row_at(j), last = row_at(j + 15);
    const Half* const next = begin_of(j + ahead + 16 <= row_at.there ? row_at(j + ahead) : first);
    if (lie_side_by_side(first, last, 16)) {
      zip_keys(first, next, k + j * depth);
      return {k + j * depth, 64, true};
    }
    const std::int64_t stride = stride_of(first, row_at(j + 1), last);
    return stride != 0 && first.block == 16 && dim == depth ? Keys{begin_of(first), stride * 2, false, next}
                                                            : Keys{};
  }

  // (dim, 16 keys) to (depth / 2, 16 keys, 2).
  void zip_keys(const Row& first, const Half* next, Half* to) const {
    const Half* from = begin_of(first);
    const auto line = [&](std::int64_t d) { return d < dim ? from + d * first.step : no_halves; };
    for (std::int64_t d = 0; d < depth; d += 2, to += 32) {
      S::touch(next + least(d, dim - 1) * first.step);
      const bool is_line = first.step == 16 && d + 2 <= dim;
      _mm512_storeu_si512(to,
                          is_line ? zip(_mm512_loadu_si512(from + d * 16)) : pair_of(line(d), line(d + 1)));
    }
  }

  Values find_values(const RowAt auto& row_at, std::int64_t j, std::int64_t count) const {
    if (j + 16 <= count && value_dim % 16 == 0) {
      const Row first = row_at(j);
      const Half* const next = begin_of(j + ahead + 16 <= row_at.there ? row_at(j + ahead) : first);
      if (const std::int64_t stride = stride_of(first, row_at(j + 1), row_at(j + 15)); stride != 0)
        return {begin_of(first), value_dim, stride, first.block, next};
    }
    Half* const copy = value_copy + j * dims;
    for (std::int64_t n = 0; n < 16; ++n)
      copy_row(row_at(least(j + n, count - 1)), j + n < count ? value_dim : 0, dims, copy + n * dims);
    return {copy, dims, dims, 16, copy};
  }

  enum class Poison { kept, as_zero };  // NaN and infinities

  // out(16 * tiles dims, rows) += the values of these dimensions, weighted by p. Whatever a value that is no
  // number is multiplied with, the sum is none either: only then is it added again without. Returns whether
  // there was one.
  template <int tiles>
  bool add_dims(std::int64_t first, std::int64_t keys, std::int64_t d, float* out) const {
    alignas(64) float sums[tiles][16 * 16];
    bool poisoned = false;
    multiply<Poison::kept>({first, keys, d}, out, sums);
    if (!all_finite<S>(sums[0], tiles * 16 * 16))
      poisoned = multiply<Poison::as_zero>({first, keys, d}, out, sums);
    for (int n = 0; n < tiles; ++n) transpose(sums[n], out + n * 16 * rows);
    return poisoned;
  }

  struct Part {
    std::int64_t first, keys, d;
  };

  // sums(tiles, rows, 16 dims) = out(dims, rows) + the products. Values are zipped one step before they are
  // multiplied, and stay in the first-level cache: 32768 keys decode in 1.18 ms instead of 1.28 (Xeon, 16
  // threads, November 2026).
  template <Poison poison, int tiles>
  bool multiply(const Part& t, const float* out, float (&sums)[tiles][16 * 16]) const {
    for (int n = 0; n < tiles; ++n) transpose(out + n * 16 * rows, sums[n]);
    const auto zipped_at = [&](std::int64_t j) { return zipped + j / 32 % 2 * 32 * most_zipped; };
    bool poisoned = zip_values<poison, tiles>(t.first, t.d, zipped_at(0));
    load_sums(sums);
    for (std::int64_t j = 0; j < t.keys; j += 32) {
      if (j + 32 < t.keys) poisoned |= zip_values<poison, tiles>(t.first + j + 32, t.d, zipped_at(j + 32));
      finish_stores();
      const Half* const pairs = zipped_at(j);
      _tile_loadd(4, p + j, block_keys * 2);
      _tile_loadd(5, pairs, 64);
      _tile_loadd(6, pairs + 512, 64);
      _tile_dpbf16ps(0, 4, 5);
      _tile_dpbf16ps(1, 4, 6);
      if constexpr (tiles == 4) {
        _tile_loadd(5, pairs + 1024, 64);
        _tile_loadd(6, pairs + 1536, 64);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 6);
      }
      finish_loads();  // the next values are zipped over these
    }
    store_sums(sums);
    return poisoned;
  }

  template <int tiles>
  static void load_sums(const float (&sums)[tiles][16 * 16]) {
    finish_stores();
    _tile_loadd(0, sums[0], 64);
    _tile_loadd(1, sums[1], 64);
    if constexpr (tiles == 4) {
      _tile_loadd(2, sums[2], 64);
      _tile_loadd(3, sums[3], 64);
    }
  }
  template <int tiles>
  static void store_sums(float (&sums)[tiles][16 * 16]) {
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    if constexpr (tiles == 4) {
      _tile_stored(2, sums[2], 64);
      _tile_stored(3, sums[3], 64);
    }
    finish_stores();
  }

  // Values j ... j + 31, dimensions d ... to (tiles, values / 2, 16 dims, 2). Returns whether there was
  // poison that it was told to look for.
  template <Poison poison, int tiles>
  bool zip_values(std::int64_t j, std::int64_t d, Half* to) const {
    const __mmask32 first = zip_sixteen<poison, tiles>(values[j / 16], d, to);
    return (first | zip_sixteen<poison, tiles>(values[j / 16 + 1], d, to + 8 * 32)) != 0;
  }

  // In the order in which they lie: a cache's lines of two values are one of memory, and those of sixteen
  // dimensions lie together; of a row every second is one.
  template <Poison poison, int tiles>
  static __mmask32 zip_sixteen(const Values& value, std::int64_t d, Half* to) {
    const std::int64_t stride = value.stride, block = value.block, first = d / 16 * block;
    const std::int64_t there = (value.dims - d) / 16;  // sixteens of dimensions
    const Half *const from = value.at + first, *const next = value.next + first;
    __mmask32 found = 0;
    const auto store = [&](std::int64_t n, std::int64_t tile, __m512i pair) {
      if constexpr (poison == Poison::as_zero) {
        const __mmask32 bad = poison_of(pair);
        pair = _mm512_maskz_mov_epi16(~bad, pair), found |= bad;
      }
      _mm512_storeu_si512(to + tile * 512 + n * 16, pair);
    };
    if (stride == 16) {
      for (std::int64_t tile = 0; tile < least(tiles, there); ++tile)
        for (std::int64_t n = 0; n < 16; n += 2) {
          S::touch(next + tile * block + n * 16);
          store(n, tile, zip(_mm512_loadu_si512(from + tile * block + n * 16)));
        }
    } else {
      for (std::int64_t n = 0; n < 16; n += 2)
        for (std::int64_t tile = 0; tile < least(tiles, there); ++tile) {
          const Half* const even = from + n * stride + tile * 16;
          S::touch(next + (n + tile % 2) * stride + tile * 16);
          store(n, tile, pair_of(even, even + stride));
        }
    }
    for (std::int64_t tile = there; tile < tiles; ++tile)
      for (std::int64_t n = 0; n < 16; n += 2) store(n, tile, _mm512_setzero_si512());
    return found;
  }

  // Which halves are NaN or infinite.
  static __mmask32 poison_of(__m512i x) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
  }

  // Twice sixteen keys, two chains of products beside each other where they lie alike.
  void score_both(std::int64_t panel, std::int64_t j, float* s) const {
    const Keys &keys = sixteen[j / 16], &others = sixteen[j / 16 + 1];
    if (!keys.at || !others.at || keys.in_pairs != others.in_pairs) {
      score_sixteen(panel, j, s);
      return score_sixteen(panel, j + 16, s + 16 * rows);
    }
    finish_stores();
    _tile_zero(0);
    _tile_zero(1);
    if (keys.in_pairs) {
      for (std::int64_t d = 0; d < depth; d += 32) {
        _tile_loadd(4, q_rows + panel + d, depth * 2);
        _tile_loadd(5, keys.at + d * 16, 64);
        _tile_loadd(6, others.at + d * 16, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 6);
      }
      alignas(64) float transposed[2][16 * 16];
      _tile_stored(0, transposed[0], 64);
      _tile_stored(1, transposed[1], 64);
      transpose(transposed[0], s), transpose(transposed[1], s + 16 * rows);
      return;
    }
    for (std::int64_t d = 0; d < depth; d += 32) {
      touch_rows(keys, d), touch_rows(others, d);
      _tile_loadd(4, keys.at + d, keys.stride);
      _tile_loadd(5, others.at + d, others.stride);
      _tile_loadd(6, q_pairs + panel + d * rows, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
    }
    _tile_stored(0, s, 64);
    _tile_stored(1, s + 16 * rows, 64);
  }

  // The line of every row that comes later and has dimension d.
  static void touch_rows(const Keys& keys, std::int64_t d) {
    for (std::int64_t n = 0; n < 16; ++n) S::touch(keys.next + n * keys.stride / 2 + d);
  }

  void score_sixteen(std::int64_t panel, std::int64_t j, float* s) const {
    const Keys& keys = sixteen[j / 16];
    const Half* at = keys.at ? keys.at : k + j * depth;
    finish_stores();
    _tile_zero(0);
    if (keys.in_pairs) {
      for (std::int64_t d = 0; d < depth; d += 32) {
        _tile_loadd(4, q_rows + panel + d, depth * 2);
        _tile_loadd(5, at + d * 16, 64);
        _tile_dpbf16ps(0, 4, 5);
      }
      alignas(64) float transposed[16 * 16];
      _tile_stored(0, transposed, 64);
      return transpose(transposed, s);
    }
    for (std::int64_t d = 0; d < depth; d += 32) {
      _tile_loadd(4, at + d, keys.at ? keys.stride : depth * 2);
      _tile_loadd(5, q_pairs + panel + d * rows, 64);
      _tile_dpbf16ps(0, 4, 5);
    }
    _tile_stored(0, s, 64);
  }

  // 16 x 16.
  static void transpose(const float* from, float* to) {
    __m512i x[16];
    for (int n = 0; n < 16; ++n) x[n] = _mm512_loadu_si512(from + n * 16);
    transpose_dwords(x);
    for (int n = 0; n < 16; ++n) _mm512_storeu_si512(to + n * 16, x[n]);
  }

  static constexpr Half no_halves[16] = {};
  Keys sixteen[block_keys / 16];
  Values values[block_keys / 16];
};

}  // namespace heed::cpu::HEED_THIS_TARGET
