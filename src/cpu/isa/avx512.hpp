// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes of AVX-512.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/vector.hpp"
#include "cpu/isa/x86.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Transposes 16 x 16 dwords in registers: called, it would have them written and read again.
[[gnu::always_inline]] inline void transpose_dwords(__m512i (&x)[16]) {
  __m512i y[16];
  for (int i = 0; i < 8; ++i) {  // pairs of rows
    y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {  // fours of rows
    x[4 * i] = _mm512_unpacklo_epi64(y[4 * i], y[4 * i + 2]);
    x[4 * i + 1] = _mm512_unpackhi_epi64(y[4 * i], y[4 * i + 2]);
    x[4 * i + 2] = _mm512_unpacklo_epi64(y[4 * i + 1], y[4 * i + 3]);
    x[4 * i + 3] = _mm512_unpackhi_epi64(y[4 * i + 1], y[4 * i + 3]);
  }
  for (int i = 0; i < 4;
       ++i) {  // columns i, 4+i, 8+i, 12+i lie in the four 128-bit lanes of x[i], x[4+i], ...
    const __m512i low = _mm512_shuffle_i32x4(x[i], x[4 + i], 0x88),
                  high = _mm512_shuffle_i32x4(x[i], x[4 + i], 0xdd);
    const __m512i low2 = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0x88),
                  high2 = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0xdd);
    y[i] = _mm512_shuffle_i32x4(low, low2, 0x88);
    y[8 + i] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    y[4 + i] = _mm512_shuffle_i32x4(high, high2, 0x88);
    y[12 + i] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
  for (int i = 0; i < 16; ++i) x[i] = y[i];
}

// In each lane of 128 bits, x(4, 4 dwords) becomes its transpose.
[[gnu::always_inline]] inline void transpose_in_lanes(__m512i (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi64(a, c), x[1] = _mm512_unpackhi_epi64(a, c);
  x[2] = _mm512_unpacklo_epi64(b, d), x[3] = _mm512_unpackhi_epi64(b, d);
}

// x(4, 4 lanes of 128 bits) becomes its transpose.
[[gnu::always_inline]] inline void transpose_lanes(__m512i (&x)[4]) {
  const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
  const __m512i c = _mm512_shuffle_i32x4(x[2], x[3], 0x44), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_i32x4(a, c, 0x88), x[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
  x[2] = _mm512_shuffle_i32x4(b, d, 0x88), x[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

// Four rows of sixteen dwords become sixteen columns of four, four columns to a vector; and back.
[[gnu::always_inline]] inline void rows_to_columns(__m512i (&x)[4]) {
  transpose_in_lanes(x);
  transpose_lanes(x);
}
[[gnu::always_inline]] inline void columns_to_rows(__m512i (&x)[4]) {
  transpose_lanes(x);
  transpose_in_lanes(x);
}

struct Avx512 : X86<Avx512> {
  using F = __m512;
  static constexpr int lanes = 16;
  static constexpr int panel_vectors = 3;  // 48 x 8 uses 24 accumulators of 32 registers
  static constexpr int tile_columns = 8;
  static constexpr int line_vectors =
      4;  // a line of dimensions, where sums over rows have those on the lanes
  static constexpr bool has_wide_panels = true;  // so wide that vectors are told apart where they see nothing
  static constexpr bool asks_ahead = true;       // for packed rows, in a backward pass

  // Sixteen floats of each of sixteen rows become sixteen lines of sixteen rows, `width` floats apart.
  [[gnu::always_inline]] static void transpose_sixteen(const F (&rows)[16], float* lines,
                                                       std::int64_t width) {
    __m512i x[16];
    for (int r = 0; r < 16; ++r) x[r] = _mm512_castps_si512(rows[r]);
    transpose_dwords(x);
    for (int d = 0; d < 16; ++d) _mm512_storeu_si512(lines + d * width, x[d]);
  }

  // 32 halves of each of sixteen rows, `apart` bytes from each other, become 32 lines of sixteen rows: line d
  // lies at place_of_half(d).
  [[gnu::always_inline]] static void transpose_halves(const void* rows, std::int64_t apart,
                                                      std::uint16_t* lines) {
    __m512i x[16], y[16];
    for (int r = 0; r < 16; ++r) x[r] = _mm512_loadu_si512(static_cast<const char*>(rows) + r * apart);
    for (int i = 0; i < 16; i += 2) {  // pairs of rows
      y[i] = _mm512_unpacklo_epi16(x[i], x[i + 1]);
      y[i + 1] = _mm512_unpackhi_epi16(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {  // fours
      x[i] = _mm512_unpacklo_epi32(y[i], y[i + 2]);
      x[i + 1] = _mm512_unpackhi_epi32(y[i], y[i + 2]);
      x[i + 2] = _mm512_unpacklo_epi32(y[i + 1], y[i + 3]);
      x[i + 3] = _mm512_unpackhi_epi32(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {  // eights: four lines d, 8 + d, 16 + d and 24 + d lie in the 128-bit lanes
      y[2 * i] = _mm512_unpacklo_epi64(x[i], x[4 + i]);
      y[2 * i + 1] = _mm512_unpackhi_epi64(x[i], x[4 + i]);
      y[8 + 2 * i] = _mm512_unpacklo_epi64(x[8 + i], x[12 + i]);
      y[8 + 2 * i + 1] = _mm512_unpackhi_epi64(x[8 + i], x[12 + i]);
    }
    alignas(64) static constexpr std::int64_t low[8] = {0, 1, 8, 9, 2, 3, 10, 11},
                                              high[8] = {4, 5, 12, 13, 6, 7, 14, 15};
    for (int d = 0; d < 8; ++d) {
      _mm512_storeu_si512(lines + 64 * d, _mm512_permutex2var_epi64(y[d], _mm512_load_si512(low), y[8 + d]));
      _mm512_storeu_si512(lines + 64 * d + 32,
                          _mm512_permutex2var_epi64(y[d], _mm512_load_si512(high), y[8 + d]));
    }
  }
  static constexpr int place_of_half(int d) { return d % 8 * 64 + d / 8 * 16; }

  // Sixteen floats of each of four rows become sixteen lines of four rows, one after another.
  [[gnu::always_inline]] static void transpose_four(const F (&rows)[4], float* lines) {
    __m512i x[4];
    for (int r = 0; r < 4; ++r) x[r] = _mm512_castps_si512(rows[r]);
    rows_to_columns(x);
    for (int n = 0; n < 4; ++n) _mm512_storeu_si512(lines + n * 16, x[n]);
  }

  // Sixteen floats of each of eight rows become sixteen lines of eight rows, one after another.
  [[gnu::always_inline]] static void transpose_eight(const F (&rows)[8], float* lines) {
    __m512i fours[2][4];  // rows 0 to 3 and 4 to 7; then column 4 * i + n lies in the i-th lane of the n-th
    for (int r = 0; r < 8; ++r) fours[r / 4][r % 4] = _mm512_castps_si512(rows[r]);
    transpose_in_lanes(fours[0]), transpose_in_lanes(fours[1]);
    for (int n = 0; n < 4; n += 2)  // two lines to a vector
      for (int upper = 0; upper < 2; ++upper) {
        const auto both = [&](int column) {
          return upper ? _mm512_shuffle_i32x4(fours[0][column], fours[1][column], 0xee)
                       : _mm512_shuffle_i32x4(fours[0][column], fours[1][column], 0x44);
        };
        const __m512i even = both(n), odd = both(n + 1);
        float* const to = lines + (8 * upper + n) * 8;
        _mm512_storeu_si512(to, _mm512_shuffle_i32x4(even, odd, 0x88));
        _mm512_storeu_si512(to + 4 * 8, _mm512_shuffle_i32x4(even, odd, 0xdd));
      }
  }

  // A line of each of sixteen rows: dword d of row r becomes dword r of line d. A dword has one f32, two bf16
  // or four bytes of its row.
  using Dwords = __m512i;
  static Dwords load_dwords(const void* p) { return _mm512_loadu_si512(p); }
  [[gnu::always_inline]] static void turn(Dwords (&rows)[16]) { transpose_dwords(rows); }
  static F f32_of(Dwords x) { return _mm512_castsi512_ps(x); }
  static F bf16_of(Dwords x, int n) {
    const __m512i upper = _mm512_and_si512(x, _mm512_set1_epi32(-0x10000));
    return _mm512_castsi512_ps(n == 0 ? _mm512_slli_epi32(x, 16) : upper);
  }
  // The lanes whose byte n is 0, or is not, a bit for each.
  template <bool is_zero>
  static std::uint16_t where_byte(Dwords x, int n) {
    const __m512i byte = _mm512_set1_epi32(static_cast<int>(0xffu << 8 * n));
    return is_zero ? _mm512_testn_epi32_mask(x, byte) : _mm512_test_epi32_mask(x, byte);
  }
  // Hides the scores of those.
  template <bool is_zero>
  static void hide_where_byte(Dwords x, int n, float* s) {
    _mm512_mask_storeu_ps(s, where_byte<is_zero>(x, n), _mm512_set1_ps(-__builtin_inff()));
  }
  static F hidden(F s, std::uint16_t where) {
    return _mm512_mask_blend_ps(where, s, _mm512_set1_ps(-__builtin_inff()));
  }
  static void store_dwords(void* p, Dwords x) { _mm512_storeu_si512(p, x); }
  // Whether one of the f32, or of the bf16, is below -2^80, or a NaN with the sign set: as whole numbers
  // those are the largest.
  static bool any_f32_far_below(const Dwords (&x)[16]) {
    Dwords most = x[0];
    for (int n = 1; n < 16; ++n) most = _mm512_max_epu32(most, x[n]);
    return _mm512_cmpgt_epu32_mask(most, _mm512_set1_epi32(static_cast<int>(0xe7800000))) != 0;
  }
  static bool any_bf16_far_below(const Dwords (&x)[16]) {
    Dwords most = _mm512_setzero_si512();
    for (const Dwords& line : x)
      most = _mm512_max_epu32(most, _mm512_max_epu32(line, _mm512_slli_epi32(line, 16)));
    return _mm512_cmpgt_epu32_mask(most, _mm512_set1_epi32(static_cast<int>(0xe780ffff))) != 0;
  }

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F fill(float x) { return _mm512_set1_ps(x); }
  static F addend(const float* filled) { return fill(*filled); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F less(F a, F b, F then, F otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
  }
  static F copy_sign(F magnitude, F sign) {
    const __m512i signs = _mm512_and_epi32(_mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(sign));
    return _mm512_castsi512_ps(_mm512_or_epi32(_mm512_castps_si512(abs(magnitude)), signs));
  }
  static F power_of_two(F z) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(z), 23)); }
  static F load_bf16(const std::uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static F load_i8(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
