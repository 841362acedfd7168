// SPDX-License-Identifier: Apache-2.0
// AMX tiles for bf16: one instruction adds products of 32 terms to 16 x 16 sums. Everything else is
// AVX-512's.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/avx512.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// A panel is one tile of sixteen rows for each vector.
template <int vectors>
struct AmxVector : Avx512 {
  static constexpr int panel_vectors = vectors;
  static constexpr int tile_columns = 32;

  // Bit n of byte b says whether byte b of the n-th of eight is 0 (is_zero), or is not 0.
  template <bool is_zero>
  static void store_where_bytes(const Dwords* eight, unsigned char* to) {
    __m512i bits = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int n = 0; n < 8; ++n) {
      const __mmask64 where =
          is_zero ? _mm512_testn_epi8_mask(eight[n], eight[n]) : _mm512_test_epi8_mask(eight[n], eight[n]);
      bits = _mm512_mask_add_epi8(bits, where, bits, _mm512_set1_epi8(static_cast<char>(1 << n)));
    }
    _mm512_storeu_si512(to, bits);
  }

  static bool any_bf16_far_below(const Dwords (&x)[16]) {
    Dwords largest = x[0];
    for (int n = 1; n < 16; ++n) largest = _mm512_max_epu16(largest, x[n]);
    return _mm512_cmpgt_epu16_mask(largest, _mm512_set1_epi16(static_cast<short>(0xe780))) != 0;
  }

  // Two vectors in bf16, the lanes of the first in the low halves, to nearest even. In integers, because
  // vcvtne2ps2pbf16 takes the smallest numbers for 0. What becomes of a NaN need not be one.
  static Dwords bf16_pairs(F even, F odd) {
    const auto rounded = [](F x) {
      const __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
      const __m512i is_odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
      return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), is_odd);
    };
    return _mm512_or_si512(_mm512_srli_epi32(rounded(even), 16),
                           _mm512_and_si512(rounded(odd), _mm512_set1_epi32(-0x10000)));
  }
  // The first n of 32 halves; n is 1 or more, and may be more than 32.
  static void store_halves(std::uint16_t* to, Dwords x, std::int64_t n) {
    if (n >= 32) return _mm512_storeu_si512(to, x);
    _mm512_mask_storeu_epi16(to, (__mmask32{1} << n) - 1, x);
  }
};

using Amx = AmxVector<2>;        // panels of 32 rows, for prefill
using NarrowAmx = AmxVector<1>;  // of 16, for decode

// The compiler's stores are done before tiles read memory. The intrinsics do not tell it that they read, or
// how much: g++ 12 wrote only the first eight bytes of a configuration.
inline void finish_stores() { asm volatile("" : : : "memory"); }
// Tiles have read memory before the compiler stores to it again.
inline void finish_loads() { asm volatile("" : : : "memory"); }

struct TileShape {
  int rows = 16, bytes = 64;  // of a row
};

// Their contents are lost.
inline void shape_tiles(const TileShape (&shapes)[8]) {
  alignas(64) std::uint8_t config[64] = {1};
  for (int tile = 0; tile < 8; ++tile) {
    config[16 + 2 * tile] = static_cast<std::uint8_t>(shapes[tile].bytes);
    config[48 + tile] = static_cast<std::uint8_t>(shapes[tile].rows);
  }
  finish_stores();
  _tile_loadconfig(config);
}

// Holds the tile registers of a thread. All eight have 16 rows of 64 bytes, except that the first operand and
// the sums of half_block_product may have fewer rows.
struct AmxTiles {
  explicit AmxTiles(int rows_of_half = 16) {
    const TileShape half{rows_of_half}, whole;
    shape_tiles({half, half, whole, whole, half, whole, whole, whole});
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};

// A block of sums, 32 by 32 rows, and its operands: a is (32, depth) bf16 with a_stride bytes between rows; b
// is (depth / 2, rows) pairs. depth is a multiple of 32.
struct AmxBlock {
  const std::uint16_t* a;
  std::int64_t a_stride;
  const std::uint16_t* b;
  std::int64_t depth;
};

constexpr std::int64_t amx_row_bytes = 128;  // of b and of the sums

// c(16, rows) = [c +] the first sixteen rows of a, times b. It uses four tiles of eight. With all eight, four
// products share four loads and take 60 cycles at best, but usually 260; four products that add to two tiles
// take 140, with as many loads. Prefill takes 4 to 29 % less time this way, provided that none of its
// products uses more tiles (16 threads of a Xeon, November 2026).
template <Start start>
inline void half_block_product(const AmxBlock& t, float* c) {
  const auto* a = reinterpret_cast<const std::uint8_t*>(t.a);
  const auto* b = reinterpret_cast<const std::uint8_t*>(t.b);
  finish_stores();
  if constexpr (start == Start::sum) {
    _tile_loadd(0, c, amx_row_bytes);
    _tile_loadd(1, c + 16, amx_row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (std::int64_t k = 0; k < t.depth; k += 32, a += 64, b += 16 * amx_row_bytes) {
    _tile_loadd(4, a, t.a_stride);
    _tile_loadd(6, b, amx_row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(6, b + 64, amx_row_bytes);
    _tile_dpbf16ps(1, 4, 6);
  }
  _tile_stored(0, c, amx_row_bytes);
  _tile_stored(1, c + 16, amx_row_bytes);
}

// c(32, rows) = [c +] a * b.
template <Start start>
inline void block_product(const AmxBlock& t, float* c) {
  half_block_product<start>(t, c);
  half_block_product<start>({t.a + 8 * t.a_stride, t.a_stride, t.b, t.depth}, c + 512);
}

// The first n of 32 halves from x on, zeros for the others; n is 1 or more, and may be more than 32.
inline __m512i first_halves(const std::uint16_t* x, std::int64_t n) {
  if (n >= 32) return _mm512_loadu_si512(x);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << n) - 1, x);
}

// Sixteen rows of `dim` bf16, null where there is none, become pairs of inputs: row n is place n of lines of
// `width` pairs, as many as it takes to hold whole thirty-twos of inputs.
inline void transpose_to_pairs(const std::uint16_t* const (&row)[16], std::int64_t dim, std::int64_t width,
                               std::uint16_t* to) {
  for (std::int64_t d = 0; d < dim; d += 32) {
    __m512i pair[16];
    for (int n = 0; n < 16; ++n)
      pair[n] = row[n] ? first_halves(row[n] + d, dim - d) : _mm512_setzero_si512();
    transpose_dwords(pair);
    for (int n = 0; n < 16; ++n) _mm512_storeu_si512(to + (d / 2 + n) * width * 2, pair[n]);
  }
}

// Two lines of sixteen bf16 side by side, zipped: those of the first in the low halves of the lanes.
inline __m512i zip(__m512i lines) {
  alignas(64) static constexpr std::uint16_t zipped[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(zipped), lines);
}

// Two lines of sixteen floats, rounded to bf16 and zipped.
inline __m512i rounded_pair(__m512 even, __m512 odd) {
  return zip(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even)));
}

// Two lines of sixteen bf16, wherever they lie, zipped.
inline __m512i pair_of(const std::uint16_t* even, const std::uint16_t* odd) {
  const __m512i first = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
  return zip(_mm512_inserti64x4(first, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)), 1));
}

}  // namespace heed::cpu::HEED_THIS_TARGET
