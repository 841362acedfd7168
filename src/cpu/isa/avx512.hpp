// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes of AVX-512: transpositions in registers, the vector, and the two products that are written in
// assembly.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/vector.hpp"
#include "cpu/isa/x86.hpp"
#include "cpu/tile/arithmetic.hpp"

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
  // Columns i, 4+i, 8+i, 12+i lie in the four 128-bit lanes of x[i], x[4+i], ...
  for (int i = 0; i < 4; ++i) {
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

struct Avx512 {
  using F = __m512;
  static constexpr int lanes = 16;
  static constexpr int panel_vectors = 3;  // 48 x 8 uses 24 accumulators of 32 registers
  static constexpr int tile_columns = 8;
  static constexpr int line_vectors = 4;  // of dimensions, in sums over rows that have those on the lanes
  static constexpr bool has_wide_panels = true;  // products skip the vectors of a panel that see nothing
  static constexpr bool prefetches_rows = true;  // packed ones, in a backward pass

  // Sixteen floats of each of sixteen rows become sixteen lines of sixteen rows, `width` floats apart.
  [[gnu::always_inline]] static void transpose_sixteen(const F (&rows)[16], float* lines,
                                                       std::int64_t width) {
    __m512i x[16];
    for (int r = 0; r < 16; ++r) x[r] = _mm512_castps_si512(rows[r]);
    transpose_dwords(x);
    for (int d = 0; d < 16; ++d) _mm512_storeu_si512(lines + d * width, x[d]);
  }

  // 32 halves of each of sixteen rows, `apart` bytes from each other, become 32 lines of sixteen rows. Line d
  // begins at element place_of_half(d).
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
  [[gnu::always_inline]] static void transpose(Dwords (&rows)[16]) { transpose_dwords(rows); }
  static F f32_of(Dwords x) { return _mm512_castsi512_ps(x); }
  static F bf16_of(Dwords x, int n) {
    const __m512i upper = _mm512_and_si512(x, _mm512_set1_epi32(-0x10000));
    return _mm512_castsi512_ps(n == 0 ? _mm512_slli_epi32(x, 16) : upper);
  }
  // The lanes whose byte n is 0 (is_zero), or is not 0: a bit for each.
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
    Dwords largest = x[0];
    for (int n = 1; n < 16; ++n) largest = _mm512_max_epu32(largest, x[n]);
    return _mm512_cmpgt_epu32_mask(largest, _mm512_set1_epi32(static_cast<int>(0xe7800000))) != 0;
  }
  static bool any_bf16_far_below(const Dwords (&x)[16]) {
    Dwords largest = _mm512_setzero_si512();
    for (const Dwords& line : x)
      largest = _mm512_max_epu32(largest, _mm512_max_epu32(line, _mm512_slli_epi32(line, 16)));
    return _mm512_cmpgt_epu32_mask(largest, _mm512_set1_epi32(static_cast<int>(0xe780ffff))) != 0;
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
  using Four = const float*;  // stay in memory, where a broadcast costs no shuffle
  static Four load_four(const float* p) { return p; }
  template <int lane>
  static F fma_lane(F x, Four four, F a) {
    return fma(x, fill(four[lane]), a);
  }
  static void transpose(const float* const from[4], float* to, std::int64_t width) {
    transpose_corner(from, to, width);
  }
  static void prefetch(const void* p) { prefetch_line(p); }
};

}  // namespace heed::cpu::HEED_THIS_TARGET

// The 48 x 8 micro-kernel for AVX-512 in assembly: where a second chain follows the first, g++ 12 has the
// 24 sums of its loop in memory. It has few instructions: a core begins six in a cycle, three for each of two
// busy threads, and two of these are the multiply-adds. So two columns of eight are broadcast by the
// multiply-adds themselves, which takes more loads instead. b is prefetched 16 steps early.
// Both together take 2 to 3 % off the scores and dQ of a backward pass (Xeon, 8 and 16 threads, November
// 2026).
//
//   zmm8 ... zmm31  the sums: column n of vector v is zmm(8 + 3n + v)
//   zmm0 - zmm2     48 rows of a
//   zmm3 - zmm5     columns of b, alternately

#if defined(__x86_64__)  // and not where tests emulate it

// clang-format off: a line of assembly is a line here.

// One column of b: three multiply-adds with a broadcast, or three that broadcast for themselves.
#define HEED_COLUMN(s0, s1, s2, b, place)                                                                    \
  "vbroadcastss " #place "(%[b]), %%zmm" #b "\n"                                                             \
  "vfmadd231ps %%zmm0, %%zmm" #b ", %%zmm" #s0 "\n"                                                          \
  "vfmadd231ps %%zmm1, %%zmm" #b ", %%zmm" #s1 "\n"                                                          \
  "vfmadd231ps %%zmm2, %%zmm" #b ", %%zmm" #s2 "\n"
#define HEED_COLUMN_IN_PLACE(s0, s1, s2, place)                                                              \
  "vfmadd231ps " #place "(%[b])%{1to16%}, %%zmm0, %%zmm" #s0 "\n"                                            \
  "vfmadd231ps " #place "(%[b])%{1to16%}, %%zmm1, %%zmm" #s1 "\n"                                            \
  "vfmadd231ps " #place "(%[b])%{1to16%}, %%zmm2, %%zmm" #s2 "\n"

// One step of the summed index; arguments are places in bytes from a and b on.
#define HEED_STEP(a0, a1, a2, b0, b1, b2, b3, b4, b5, b6, b7)                                                \
  "vmovups " #a0 "(%[a]), %%zmm0\n"                                                                          \
  "vmovups " #a1 "(%[a]), %%zmm1\n"                                                                          \
  "vmovups " #a2 "(%[a]), %%zmm2\n"                                                                          \
  HEED_COLUMN(8, 9, 10, 3, b0) HEED_COLUMN(11, 12, 13, 4, b1) HEED_COLUMN(14, 15, 16, 5, b2)                 \
  HEED_COLUMN_IN_PLACE(17, 18, 19, b3)                                                                       \
  HEED_COLUMN(20, 21, 22, 3, b4) HEED_COLUMN(23, 24, 25, 4, b5) HEED_COLUMN(26, 27, 28, 5, b6)               \
  HEED_COLUMN_IN_PLACE(29, 30, 31, b7)
#define HEED_TWO_STEPS                                                                                       \
  "prefetcht0 512(%[b])\n"                                                                                   \
  HEED_STEP(0, 64, 128, 0, 4, 8, 12, 16, 20, 24, 28)                                                         \
  HEED_STEP(192, 256, 320, 32, 36, 40, 44, 48, 52, 56, 60)                                                   \
  "add $384, %[a]\nadd $64, %[b]\n"

// A step of the last two vectors of a panel, and of the last alone.
#define HEED_COLUMN_OF_TWO(s1, s2, b, place)                                                                 \
  "vbroadcastss " #place "(%[b]), %%zmm" #b "\n"                                                             \
  "vfmadd231ps %%zmm1, %%zmm" #b ", %%zmm" #s1 "\n"                                                          \
  "vfmadd231ps %%zmm2, %%zmm" #b ", %%zmm" #s2 "\n"
#define HEED_STEP_OF_TWO                                                                                     \
  "vmovups 64(%[a]), %%zmm1\n"                                                                               \
  "vmovups 128(%[a]), %%zmm2\n"                                                                              \
  HEED_COLUMN_OF_TWO(9, 10, 3, 0) HEED_COLUMN_OF_TWO(12, 13, 4, 4) HEED_COLUMN_OF_TWO(15, 16, 5, 8)          \
  HEED_COLUMN_OF_TWO(18, 19, 3, 12) HEED_COLUMN_OF_TWO(21, 22, 4, 16) HEED_COLUMN_OF_TWO(24, 25, 5, 20)      \
  HEED_COLUMN_OF_TWO(27, 28, 3, 24) HEED_COLUMN_OF_TWO(30, 31, 4, 28)                                        \
  "add $192, %[a]\nadd $32, %[b]\n"
#define HEED_COLUMN_OF_ONE(s2, place) "vfmadd231ps " #place "(%[b])%{1to16%}, %%zmm2, %%zmm" #s2 "\n"
#define HEED_STEP_OF_ONE                                                                                     \
  "vmovups 128(%[a]), %%zmm2\n"                                                                              \
  HEED_COLUMN_OF_ONE(10, 0) HEED_COLUMN_OF_ONE(13, 4) HEED_COLUMN_OF_ONE(16, 8) HEED_COLUMN_OF_ONE(19, 12)   \
  HEED_COLUMN_OF_ONE(22, 16) HEED_COLUMN_OF_ONE(25, 20) HEED_COLUMN_OF_ONE(28, 24)                           \
  HEED_COLUMN_OF_ONE(31, 28)                                                                                 \
  "add $192, %[a]\nadd $32, %[b]\n"

// f(register, place in c in bytes) for every sum.
#define HEED_EACH_SUM(f)                                                                                     \
  f(8, 0) f(9, 64) f(10, 128) f(11, 192) f(12, 256) f(13, 320) f(14, 384) f(15, 448) f(16, 512)              \
  f(17, 576) f(18, 640) f(19, 704) f(20, 768) f(21, 832) f(22, 896) f(23, 960) f(24, 1024) f(25, 1088)       \
  f(26, 1152) f(27, 1216) f(28, 1280) f(29, 1344) f(30, 1408) f(31, 1472)
#define HEED_ZERO_SUM(r, place) "vpxorq %%zmm" #r ", %%zmm" #r ", %%zmm" #r "\n"
#define HEED_STORE_SUM(r, place) "vmovups %%zmm" #r ", " #place "(%[c])\n"
#define HEED_ADD_SUM(r, place) "vaddps " #place "(%[c]), %%zmm" #r ", %%zmm" #r "\n" HEED_STORE_SUM(r, place)

// What products change besides their operands.
#define HEED_CHANGED                                                                                         \
  "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",   \
  "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21",         \
  "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"

#define HEED_TILE_PRODUCT(last)                                                                              \
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM)                                                                  \
               ".p2align 5\n"                                                                                \
               "1:\n" HEED_TWO_STEPS                                                                         \
               "sub $2, %[n]\n"                                                                              \
               "jne 1b\n" HEED_EACH_SUM(last)                                                                \
               : [a] "+r"(a), [b] "+r"(b), [n] "+r"(depth)                                                   \
               : [c] "r"(c)                                                                                  \
               : HEED_CHANGED)

// clang-format on

namespace heed::cpu::HEED_THIS_TARGET {

template <>
[[gnu::always_inline]] inline void tile_product<Avx512, Start::zero>(const float* a, const float* b,
                                                                     std::int64_t depth, float* c) {
  HEED_TILE_PRODUCT(HEED_STORE_SUM);
}

template <>
[[gnu::always_inline]] inline void tile_product<Avx512, Start::apart>(const float* a, const float* b,
                                                                      std::int64_t depth, float* c) {
  HEED_TILE_PRODUCT(HEED_ADD_SUM);
}

// Steps of all three vectors, then of two, then of one; each may be none.
template <>
[[gnu::always_inline]] inline void stepped_product<Avx512>(const float* a, const float* b,
                                                           const std::int64_t (&depth)[3], float* c) {
  std::int64_t of_three = depth[0], of_two = depth[1] - depth[0], of_one = depth[2] - depth[1];
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM)
               "test %[three], %[three]\n"
               "je 2f\n"
               ".p2align 5\n"
               "1:\n" HEED_TWO_STEPS
               "sub $2, %[three]\n"
               "jne 1b\n"
               "2: test %[two], %[two]\n"
               "je 4f\n"
               "3:\n" HEED_STEP_OF_TWO
               "sub $1, %[two]\n"
               "jne 3b\n"
               "4: test %[one], %[one]\n"
               "je 6f\n"
               "5:\n" HEED_STEP_OF_ONE
               "sub $1, %[one]\n"
               "jne 5b\n"
               "6:\n" HEED_EACH_SUM(HEED_ADD_SUM)
               : [a] "+r"(a), [b] "+r"(b), [three] "+r"(of_three), [two] "+r"(of_two), [one] "+r"(of_one)
               : [c] "r"(c)
               : HEED_CHANGED);
}

}  // namespace heed::cpu::HEED_THIS_TARGET

// clang-format off: a line of assembly is a line here.

#undef HEED_COLUMN
#undef HEED_COLUMN_IN_PLACE
#undef HEED_STEP
#undef HEED_COLUMN_OF_TWO
#undef HEED_COLUMN_OF_ONE
#undef HEED_STEP_OF_TWO
#undef HEED_STEP_OF_ONE
#undef HEED_TWO_STEPS
#undef HEED_EACH_SUM
#undef HEED_ZERO_SUM
#undef HEED_STORE_SUM
#undef HEED_ADD_SUM
#undef HEED_TILE_PRODUCT

#endif

// line_product() of 4 vectors and 6 columns for AVX-512 in assembly. The lines of sums were last written by
// another core: they are prefetched, to be written, when the products begin, 1200 cycles before they are
// needed. Two columns of six are broadcast by the multiply-adds, as above. Both together take
// 2 to 4 % off the sums over rows of a backward pass on 16 threads of a Xeon, the first alone half of that,
// the second nothing (November 2026).
//
//   zmm8 ... zmm31  the sums: column k of vector v is zmm(8 + 4k + v)
//   zmm0 - zmm3     64 dimensions of a row
//   zmm4 - zmm7     columns of pairs, alternately

#if defined(__x86_64__)  // and not where tests emulate it

#define HEED_COLUMN(s0, s1, s2, s3, b, place)                                                                \
  "vbroadcastss " place "(%[b]), %%zmm" #b "\n"                                                              \
  "vfmadd231ps %%zmm0, %%zmm" #b ", %%zmm" #s0 "\n"                                                          \
  "vfmadd231ps %%zmm1, %%zmm" #b ", %%zmm" #s1 "\n"                                                          \
  "vfmadd231ps %%zmm2, %%zmm" #b ", %%zmm" #s2 "\n"                                                          \
  "vfmadd231ps %%zmm3, %%zmm" #b ", %%zmm" #s3 "\n"
#define HEED_COLUMN_IN_PLACE(s0, s1, s2, s3, place)                                                          \
  "vfmadd231ps " place "(%[b])%{1to16%}, %%zmm0, %%zmm" #s0 "\n"                                             \
  "vfmadd231ps " place "(%[b])%{1to16%}, %%zmm1, %%zmm" #s1 "\n"                                             \
  "vfmadd231ps " place "(%[b])%{1to16%}, %%zmm2, %%zmm" #s2 "\n"                                             \
  "vfmadd231ps " place "(%[b])%{1to16%}, %%zmm3, %%zmm" #s3 "\n"

// One row, a and b bytes from where they point; columns are 48 floats apart.
#define HEED_ROW(a, b)                                                                                       \
  "vmovups " a "(%[a]), %%zmm0\n"                                                                            \
  "vmovups 64+" a "(%[a]), %%zmm1\n"                                                                         \
  "vmovups 128+" a "(%[a]), %%zmm2\n"                                                                        \
  "vmovups 192+" a "(%[a]), %%zmm3\n"                                                                        \
  HEED_COLUMN(8, 9, 10, 11, 4, b) HEED_COLUMN(12, 13, 14, 15, 5, "192+" b)                                   \
  HEED_COLUMN_IN_PLACE(16, 17, 18, 19, "384+" b)                                                             \
  HEED_COLUMN(20, 21, 22, 23, 6, "576+" b) HEED_COLUMN(24, 25, 26, 27, 7, "768+" b)                          \
  HEED_COLUMN_IN_PLACE(28, 29, 30, 31, "960+" b)

// f(registers) for the sums of every column.
#define HEED_EACH_COLUMN(f)                                                                                  \
  f(8, 9, 10, 11) f(12, 13, 14, 15) f(16, 17, 18, 19) f(20, 21, 22, 23) f(24, 25, 26, 27) f(28, 29, 30, 31)
#define HEED_ZERO(r) "vpxorq %%zmm" #r ", %%zmm" #r ", %%zmm" #r "\n"
#define HEED_BEGIN(s0, s1, s2, s3)                                                                           \
  "prefetchw (%[next])\nprefetchw 64(%[next])\nprefetchw 128(%[next])\nprefetchw 192(%[next])\n"             \
  "add %[stride], %[next]\n" HEED_ZERO(s0) HEED_ZERO(s1) HEED_ZERO(s2) HEED_ZERO(s3)
#define HEED_ADD(r, place)                                                                                   \
  "vaddps " #place "(%[sums]), %%zmm" #r ", %%zmm" #r "\n"                                                   \
  "vmovups %%zmm" #r ", " #place "(%[sums])\n"
#define HEED_END(s0, s1, s2, s3)                                                                             \
  HEED_ADD(s0, 0) HEED_ADD(s1, 64) HEED_ADD(s2, 128) HEED_ADD(s3, 192) "add %[stride], %[sums]\n"

// clang-format on

namespace heed::cpu::HEED_THIS_TARGET {

template <>
[[gnu::always_inline]] inline void line_product<Avx512, 4, 6>(const LinePanel* panel, std::int64_t panels,
                                                              float* sums, std::int64_t stride) {
  static_assert(Tile<Avx512>::rows == 48 && sizeof(LinePanel) == 24);
  const float *a, *b, *next = sums;
  std::int64_t n;
  asm volatile(HEED_EACH_COLUMN(HEED_BEGIN)
               "2:\n"
               "mov (%[panel]), %[a]\n"
               "mov 8(%[panel]), %[b]\n"
               "mov 16(%[panel]), %[n]\n"
               ".p2align 5\n"
               "1:\n" HEED_ROW("0", "0") HEED_ROW("256", "4")
               "add $512, %[a]\n"
               "add $8, %[b]\n"
               "sub $2, %[n]\n"
               "jne 1b\n"
               "add $24, %[panel]\n"
               "dec %[panels]\n"
               "jne 2b\n" HEED_EACH_COLUMN(HEED_END)
               : [a] "=&r"(a), [b] "=&r"(b), [n] "=&r"(n), [panel] "+r"(panel), [panels] "+r"(panels),
                 [sums] "+r"(sums), [next] "+r"(next)
               : [stride] "r"(stride * static_cast<std::int64_t>(sizeof(float)))
               : HEED_CHANGED);
}

}  // namespace heed::cpu::HEED_THIS_TARGET

#undef HEED_COLUMN
#undef HEED_COLUMN_IN_PLACE
#undef HEED_ROW
#undef HEED_EACH_COLUMN
#undef HEED_ZERO
#undef HEED_BEGIN
#undef HEED_ADD
#undef HEED_END
#undef HEED_CHANGED

#endif
