// SPDX-License-Identifier: Apache-2.0
// Decode's weighted values by AMX: the first operand is the weights, only their real rows; the second the
// values, zipped two by two in the first-level cache just before they are multiplied. Sums are (rows, dims),
// and each has the order of operands_amx.hpp, so the bits agree (O3).
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/decode/decode.hpp"
#include "cpu/isa/amx.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

using Half = std::uint16_t;

// n halves of a row, and zeros up to `width`, a multiple of 32. In whole lines, as tiles are loaded: those
// need not wait for the stores.
inline void copy_halves(const Row& row, std::int64_t n, std::int64_t width, Half* to) {
  const Half* from = static_cast<const Half*>(row.data) + row.first;
  std::int64_t d = 0;
  if (is_contiguous(row))
    for (; d < n; d += 32) _mm512_storeu_si512(to + d, first_halves(from + d, n - d));
  for (; d < n; ++d) to[d] = from[d / 16 * row.block + d % 16 * row.step];
  for (; d < width; ++d) to[d] = 0;
}

constexpr std::int64_t amx_step = 32;    // keys that are multiplied at a time
constexpr std::int64_t max_zipped = 64;  // dimensions, whose sums are four tiles

// The memory of a task.
struct AmxValueBuffers {
  std::int64_t dims;
  Half* p;       // (rows, keys): weights
  Half* zipped;  // twice 32 values of 64 dims: (dims / 16, values / 2, 16, 2)
  Half* copies;  // of values that do not lie in whole lines
  float* sums;   // (4 tiles, rows, 16 dims)

  AmxValueBuffers(const Call& c, Cutter& memory)
      : dims(round_up(c.value_dim, 32)),
        p(memory.cut_halves(16 * block_keys)),
        zipped(memory.cut_halves(2 * amx_step * max_zipped)),
        copies(memory.cut_halves(block_keys * dims)),
        sums(memory.cut(4 * 16 * 16)) {}
};

class AmxValues {
  using S = NarrowAmx;
  static constexpr std::int64_t step = amx_step;

 public:
  AmxValues(const DecodeRows<S>& task_rows, Cutter& memory)
      : rows(task_rows), c(rows.c), buffers(rows.c, memory) {}

  // out(rows, dims) += the values of the stretch, weighted by t.s, which has room for whole steps; of
  // each step `pairs` pairs of keys. Returns whether a value was NaN or infinite, and so omitted.
  bool add(const Scores& t, std::int64_t pairs, float* out) {
    is_part = pairs < step / 2;
    round_weights(t);
    find_values(t);
    bool poisoned = false;
    std::int64_t d = 0;
    for (; d + 64 <= buffers.dims; d += 64) poisoned |= add_dims<4>(t.keys, d, out + d);
    if (d < buffers.dims) poisoned |= add_dims<2>(t.keys, d, out + d);
    return poisoned;
  }

 private:
  // s(keys, width) to p(rows, keys); beyond the last key they are 0.
  void round_weights(const Scores& t) const {
    const std::int64_t keys = round_up(t.keys, step);
    fill(t.s + t.keys * t.width, (keys - t.keys) * t.width, 0.0f);
    for (std::int64_t j = 0; j < keys; j += 16) {
      if (t.width == 1) {
        store_rounded({_mm512_loadu_si512(t.s + j)}, j);
      } else if (t.width == 4) {
        __m512i x[4];
        for (int n = 0; n < 4; ++n) x[n] = _mm512_loadu_si512(t.s + j * 4 + n * 16);
        columns_to_rows(x);
        store_rounded(x, j);
      } else {
        __m512i x[16];
        for (int n = 0; n < 16; ++n) x[n] = _mm512_loadu_si512(t.s + (j + n) * 16);
        transpose_dwords(x);
        store_rounded(x, j);
      }
    }
  }
  template <int n>
  void store_rounded(const __m512i (&x)[n], std::int64_t j) const {
    for (int r = 0; r < n && r < rows.count; ++r)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(buffers.p + r * block_keys + j),
                          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_castsi512_ps(x[r]))));
  }

  // Sixteen values, of which `count` are real: rows of dimensions `stride` apart, or a cache's tile. `next`
  // is where the values of the next step lie alike, to prefetch them, or these again.
  struct SixteenValues {
    const Half* at;
    std::int64_t stride, count;
    const Half* next;
  };

  void find_values(const Scores& t) {
    const std::int64_t end = rows.keys_to_chunk_end(t);
    if (c.cached) return find_tiles(t, end);
    for (std::int64_t j = 0; j < round_up(t.keys, step); j += 16) {
      const std::int64_t count = max(0, min(16, t.keys - j));
      if (c.v.stride.dim == 1) {
        const auto at = [&](std::int64_t n) {
          return reinterpret_cast<const Half*>(rows.place(c.v, t.first_key + n));
        };
        values[j / 16] = {at(j), c.v.stride.length, count, at(j + step + 16 <= end ? j + step : j)};
        continue;
      }
      Half* const copy = buffers.copies + j * buffers.dims;
      for (std::int64_t n = 0; n < count; ++n)
        copy_halves(value_row(c, rows.b, rows.kv_head, t.first_key + j + n), c.value_dim, buffers.dims,
                    copy + n * buffers.dims);
      values[j / 16] = {copy, buffers.dims, count, copy};
    }
  }

  // A tile may have anything beyond the last value: then it is copied.
  void find_tiles(const Scores& t, std::int64_t end) {
    const std::int64_t all = c.layout.value_width() * 16;
    TileWalk at = TileWalk::of_values(c, rows.b, rows.kv_head, t.first_key), next = at;
    for (std::int64_t n = 0; n < step && n < end; n += 16) next.step();
    for (std::int64_t j = 0; j < round_up(t.keys, step); j += 16) {
      const std::int64_t count = max(0, min(16, t.keys - j));
      const auto* from = count > 0 ? reinterpret_cast<const Half*>(at.place()) : buffers.copies;
      const bool has_next = j + step < end;
      values[j / 16] = {from, 16, 16, has_next ? reinterpret_cast<const Half*>(next.place()) : from};
      if (count > 0) at.step();
      if (has_next) next.step();
      if (count == 16) continue;
      Half* const copy = buffers.copies + j * buffers.dims;
      __builtin_memset(copy, 0, static_cast<std::size_t>(16 * buffers.dims) * sizeof(Half));
      for (std::int64_t d = 0; d < all && count > 0; d += 256)
        __builtin_memcpy(copy + d, from + d, static_cast<std::size_t>(count * 16) * sizeof(Half));
      values[j / 16].at = values[j / 16].next = copy;
    }
  }

  enum class Poison { as_it_is, as_zero };  // NaN and infinities

  // A value that is NaN or infinite makes the sum so, whatever its weight: only then it is added again
  // without such values. Returns whether it found one.
  template <int tiles>
  bool add_dims(std::int64_t keys, std::int64_t d, float* out) const {
    bool poisoned = false;
    multiply<Poison::as_it_is, tiles>(keys, d, out);
    if (!are_finite(tiles)) poisoned = multiply<Poison::as_zero, tiles>(keys, d, out);
    write_sums<tiles>(out);
    return poisoned;
  }

  bool are_finite(int tiles) const {
    for (int n = 0; n < tiles; ++n)
      if (!all_finite<S>(buffers.sums + n * 256, rows.count * 16)) return false;
    return true;
  }

  // sums(tiles, rows, 16 dims) = out(rows, dims) + the products.
  template <Poison poison, int tiles>
  bool multiply(std::int64_t keys, std::int64_t d, const float* out) const {
    const auto zipped_at = [&](std::int64_t j) { return buffers.zipped + j / step % 2 * step * max_zipped; };
    bool poisoned = zip_values<poison, tiles>(0, d, zipped_at(0));
    read_sums<tiles>(out);
    for (std::int64_t j = 0; j < keys; j += step) {
      if (j + step < keys) poisoned |= zip_values<poison, tiles>(j + step, d, zipped_at(j + step));
      finish_stores();
      const Half* const pairs = zipped_at(j);
      _tile_loadd(4, buffers.p + j, block_keys * 2);
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
    _tile_stored(0, buffers.sums, 64);
    _tile_stored(1, buffers.sums + 256, 64);
    if constexpr (tiles == 4) {
      _tile_stored(2, buffers.sums + 512, 64);
      _tile_stored(3, buffers.sums + 768, 64);
    }
    finish_stores();
    return poisoned;
  }

  // Of rows, two lines of 32 dimensions are zipped in lanes of 128 bits: the sums of the even fours of
  // dimensions are one tile, those of the odd ones the next.
  template <int tiles>
  void read_sums(const float* out) const {
    for (std::int64_t r = 0; r < rows.count; ++r)
      for (int n = 0; n < tiles; n += 2) {
        const float* const from = out + r * rows.at.dims + n * 16;
        const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 16);
        float* const to = buffers.sums + n * 256 + r * 16;
        _mm512_storeu_si512(to, c.cached ? a : _mm512_shuffle_i32x4(a, b, 0x88));
        _mm512_storeu_si512(to + 256, c.cached ? b : _mm512_shuffle_i32x4(a, b, 0xdd));
      }
    finish_stores();
    _tile_loadd(0, buffers.sums, 64);
    _tile_loadd(1, buffers.sums + 256, 64);
    if constexpr (tiles == 4) {
      _tile_loadd(2, buffers.sums + 512, 64);
      _tile_loadd(3, buffers.sums + 768, 64);
    }
  }
  template <int tiles>
  void write_sums(float* out) const {
    for (std::int64_t r = 0; r < rows.count; ++r)
      for (int n = 0; n < tiles; n += 2) {
        const float* const from = buffers.sums + n * 256 + r * 16;
        const __m512i even = _mm512_loadu_si512(from), odd = _mm512_loadu_si512(from + 256);
        const __m512i low = _mm512_shuffle_i32x4(even, odd, 0x44),
                      high = _mm512_shuffle_i32x4(even, odd, 0xee);
        float* const to = out + r * rows.at.dims + n * 16;
        _mm512_storeu_si512(to, c.cached ? even : _mm512_shuffle_i32x4(low, low, 0xd8));
        _mm512_storeu_si512(to + 16, c.cached ? odd : _mm512_shuffle_i32x4(high, high, 0xd8));
      }
  }

  // Values j ... j + 31, dimensions d ... to (tiles, values / 2, 16 dims, 2). Returns whether it
  // replaced poison by 0.
  template <Poison poison, int tiles>
  bool zip_values(std::int64_t j, std::int64_t d, Half* to) const {
    __mmask32 found = 0;
    for (std::int64_t n = 0; n < 2; ++n, to += 8 * 32) {
      const SixteenValues& some = values[j / 16 + n];
      if (is_part && some.count == 0) break;
      if (c.cached)
        found |= zip_tile<poison, tiles>(some, d, to);
      else if (some.count == 16 && d + 16 * tiles <= c.value_dim)
        found |= zip_rows<poison, tiles, true>(some, d, to);
      else
        found |= zip_rows<poison, tiles, false>(some, d, to);
    }
    return found != 0;
  }

  template <Poison poison>
  static __mmask32 store_pair(__m512i pair, Half* to) {
    __mmask32 bad = 0;
    if constexpr (poison == Poison::as_zero) {
      bad = poison_of(pair);
      pair = _mm512_maskz_mov_epi16(~bad, pair);
    }
    _mm512_storeu_si512(to, pair);
    return bad;
  }

  // A cache's: of two values sixteen dimensions are one line of memory.
  template <Poison poison, int tiles>
  __mmask32 zip_tile(const SixteenValues& some, std::int64_t d, Half* to) const {
    __mmask32 found = 0;
    const std::int64_t blocks = (c.layout.value_width() - d) / 16;
    for (std::int64_t tile = 0; tile < tiles; ++tile)
      for (std::int64_t n = 0; n < 16; n += 2) {
        const std::int64_t at = (d + tile * 16) * 16 + n * 16;
        Half* const pair = to + tile * 512 + n * 16;
        if (tile < blocks) {
          S::prefetch(some.next + at);
          found |= store_pair<poison>(zip(_mm512_loadu_si512(some.at + at)), pair);
        } else {
          _mm512_storeu_si512(pair, _mm512_setzero_si512());
        }
      }
    return found;
  }

  // Rows: a line of memory is 32 dimensions of one of them.
  template <Poison poison, int tiles, bool whole>
  __mmask32 zip_rows(const SixteenValues& some, std::int64_t d, Half* to) const {
    __mmask32 found = 0;
    __mmask32 real[tiles / 2];  // which of a line's dimensions
    for (int n = 0; n < tiles / 2; ++n) real[n] = first_of(c.value_dim - d - n * 32);
    const auto line = [&](std::int64_t n, std::int64_t tile) {
      const std::int64_t at = n * some.stride + d + tile * 16;
      S::prefetch(some.next + at);
      if constexpr (whole) return _mm512_loadu_si512(some.at + at);
      return _mm512_maskz_loadu_epi16(n < some.count ? real[tile / 2] : 0, some.at + at);
    };
    const std::int64_t end = is_part ? some.count : 16;
    for (std::int64_t n = 0; n < end; n += 2)
      for (std::int64_t tile = 0; tile < tiles; tile += 2) {
        const __m512i even = line(n, tile), odd = line(n + 1, tile);
        Half* const pair = to + tile * 512 + n * 16;
        found |= store_pair<poison>(_mm512_unpacklo_epi16(even, odd), pair);
        found |= store_pair<poison>(_mm512_unpackhi_epi16(even, odd), pair + 512);
      }
    return found;
  }

  // The first n of 32 halves.
  static __mmask32 first_of(std::int64_t n) {
    return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << max(0, n)) - 1;
  }

  // Which halves are NaN or infinite.
  static __mmask32 poison_of(__m512i x) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const AmxValueBuffers buffers;
  SixteenValues values[block_keys / 16];
  bool is_part = false;  // of a step, the only one
};

}  // namespace heed::cpu::HEED_THIS_TARGET
