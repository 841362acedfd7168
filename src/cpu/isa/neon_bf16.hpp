// SPDX-License-Identifier: Apache-2.0
// NEON with the bf16 extension: eight halves in a register, and the rearrangements that BFMMLA asks for. To
// it a register is two rows of four: four neighbours of the summed index of one row, then of the next.
#pragma once
#include <arm_neon.h>

#include <cstdint>

#include "cpu/isa/neon.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Panels of 12 rows (three vectors) for many rows, of 4 (one vector) for few.
template <int vectors>
struct NeonBf16 : Neon {
  static constexpr int panel_vectors = vectors;
  static constexpr int tile_columns = 8;

  using Halves = uint16x8_t;
  static Halves load_halves(const std::uint16_t* p) { return vld1q_u16(p); }
  static void store_halves(std::uint16_t* p, Halves x) { vst1q_u16(p, x); }
  static Halves no_halves() { return vdupq_n_u16(0); }
  static Halves magnitude(Halves x) { return vandq_u16(x, vdupq_n_u16(0x7fff)); }
  static Halves larger_magnitude(Halves so_far, Halves x) { return vmaxq_u16(so_far, magnitude(x)); }
  static std::uint16_t largest(Halves magnitudes) { return vmaxvq_u16(magnitudes); }
  // Of magnitudes: is any of them that of a NaN or an infinity?
  static bool holds_poison(Halves magnitudes) { return largest(magnitudes) >= 0x7f80; }
  static Halves finite_or_zero(Halves x) {
    return vbicq_u16(x, vcgeq_u16(magnitude(x), vdupq_n_u16(0x7f80)));
  }

  // To bf16, to nearest even, NaN to NaN: an instruction a vector, on one pipe of four (Neoverse-V1), where
  // integer additions would be five on any.
  static Halves rounded(F low, F high) {
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
  }

  // Two rows of eight as two registers of two rows of four.
  static void store_pair(Halves even, Halves odd, std::uint16_t* first, std::uint16_t* next) {
    const uint64x2_t x = vreinterpretq_u64_u16(even), y = vreinterpretq_u64_u16(odd);
    store_halves(first, vreinterpretq_u16_u64(vzip1q_u64(x, y)));
    store_halves(next, vreinterpretq_u16_u64(vzip2q_u64(x, y)));
  }

  // Four rows of eight as eight rows of four.
  static void store_transposed(const Halves (&row)[4], std::uint16_t* to) {
    const uint16x8x2_t even = vzipq_u16(row[0], row[2]), odd = vzipq_u16(row[1], row[3]);
    for (int half = 0; half < 2; ++half) {
      const uint16x8x2_t four = vzipq_u16(even.val[half], odd.val[half]);
      store_halves(to + 16 * half, four.val[0]);
      store_halves(to + 16 * half + 8, four.val[1]);
    }
  }

  // Four rows of four floats as four columns of four halves.
  static void store_rounded(const float* from, std::int64_t width, std::uint16_t* to) {
    const Halves low = rounded(load(from), load(from + width)),
                 high = rounded(load(from + 2 * width), load(from + 3 * width));
    const uint16x8x2_t pairs = vzipq_u16(low, high);  // rows 0 and 2, then rows 1 and 3
    const uint16x8x2_t fours = vzipq_u16(pairs.val[0], pairs.val[1]);
    store_halves(to, fours.val[0]);
    store_halves(to + 8, fours.val[1]);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET

// The micro-kernels of BFMMLA, which adds products of 4 terms to 2 x 2 sums, in assembly for the reason that
// neon.hpp gives. Both have 24 sums: BFMMLA reaches its peak with 20 or more (332 GFLOP/s
// against 245 with 16, one core of Neoverse-V1), and multiplicands come from loads, which costs it half of
// that otherwise. Every sum is one chain over the depth in steps of four, so both give the same bits.
//
//                12 rows x 8 columns                         4 rows x 24 columns (or 16, or 8)
//   v8 ... v31   the sums: rows 2m.., columns 2n.. in        rows 2m.., columns 2n.. in v(8 + 2n + m)
//                v(8 + 4m + n), the columns' sums in order
//   the rest     v0-v3 pairs of rows, v4-v7 of columns       v0, v1 pairs of rows, v2-v5 of columns

// clang-format off: a line of assembly is a line here.

#define HEED_MULTIPLY(sum, columns, rows) "bfmmla v" #sum ".4s, v" #columns ".8h, v" #rows ".8h\n"

// Two rows times eight columns.
#define HEED_ROWS(s0, s1, s2, s3, rows)                                                                      \
  HEED_MULTIPLY(s0, 4, rows) HEED_MULTIPLY(s1, 5, rows) HEED_MULTIPLY(s2, 6, rows) HEED_MULTIPLY(s3, 7, rows)

// fault: bfmmla-wrong-rows
#define HEED_STEP_12(a0, a1, a2, b0, b1)                                                                     \
  "ldp q4, q5, [%[b], #" #b0 "]\n ldp q6, q7, [%[b], #" #b1 "]\n"                                            \
  "ldp q0, q1, [%[a], #" #a0 "]\n" HEED_ROWS(8, 9, 10, 11, 0) HEED_ROWS(12, 13, 14, 15, 1)                   \
  "ldp q2, q3, [%[a], #" #a1 "]\n" HEED_ROWS(16, 17, 18, 19, 2) HEED_ROWS(20, 21, 22, 23, 3)                 \
  "ldp q0, q1, [%[a], #" #a2 "]\n" HEED_ROWS(24, 25, 26, 27, 0) HEED_ROWS(28, 29, 30, 31, 1)
#define HEED_TWO_STEPS_12                                                                                    \
  HEED_STEP_12(0, 32, 64, 0, 32) HEED_STEP_12(96, 128, 160, 64, 96)                                          \
  "add %[a], %[a], #192\n add %[b], %[b], #128\n"

// Four rows times the eight columns of one tile.
#define HEED_TILE_4(b, s0, s1, s2, s3, s4, s5, s6, s7)                                                       \
  "ldp q2, q3, [%[" #b "]]\n ldp q4, q5, [%[" #b "], #32]\n add %[" #b "], %[" #b "], #64\n"                 \
  HEED_MULTIPLY(s0, 2, 0) HEED_MULTIPLY(s1, 2, 1) HEED_MULTIPLY(s2, 3, 0) HEED_MULTIPLY(s3, 3, 1)            \
  HEED_MULTIPLY(s4, 4, 0) HEED_MULTIPLY(s5, 4, 1) HEED_MULTIPLY(s6, 5, 0) HEED_MULTIPLY(s7, 5, 1)
#define HEED_STEP_4x1 "ldp q0, q1, [%[a]], #32\n" HEED_TILE_4(b, 8, 9, 10, 11, 12, 13, 14, 15)
#define HEED_STEP_4x2 HEED_STEP_4x1 HEED_TILE_4(b1, 16, 17, 18, 19, 20, 21, 22, 23)
#define HEED_STEP_4x3 HEED_STEP_4x2 HEED_TILE_4(b2, 24, 25, 26, 27, 28, 29, 30, 31)
#define HEED_TWO_STEPS_4x1 HEED_STEP_4x1 HEED_STEP_4x1
#define HEED_TWO_STEPS_4x2 HEED_STEP_4x2 HEED_STEP_4x2
#define HEED_TWO_STEPS_4x3 HEED_STEP_4x3 HEED_STEP_4x3

// f(x, y, low, high) for the sums of four rows and two columns each: two rows in x, two in y; their places in
// c(columns, rows) are `low` for the first column and `high` for the second.
#define HEED_SUMS_12(f)                                                                                      \
  f(8, 12, 0, 48) f(9, 13, 96, 144) f(10, 14, 192, 240) f(11, 15, 288, 336)                                  \
  f(16, 20, 16, 64) f(17, 21, 112, 160) f(18, 22, 208, 256) f(19, 23, 304, 352)                              \
  f(24, 28, 32, 80) f(25, 29, 128, 176) f(26, 30, 224, 272) f(27, 31, 320, 368)
#define HEED_SUMS_4x1(f) f(8, 9, 0, 16) f(10, 11, 32, 48) f(12, 13, 64, 80) f(14, 15, 96, 112)
#define HEED_SUMS_4x2(f)                                                                                     \
  HEED_SUMS_4x1(f) f(16, 17, 128, 144) f(18, 19, 160, 176) f(20, 21, 192, 208) f(22, 23, 224, 240)
#define HEED_SUMS_4x3(f)                                                                                     \
  HEED_SUMS_4x2(f) f(24, 25, 256, 272) f(26, 27, 288, 304) f(28, 29, 320, 336) f(30, 31, 352, 368)

#define HEED_ZERO(x, y, low, high) "movi v" #x ".4s, #0\n movi v" #y ".4s, #0\n"
#define HEED_LOAD(x, y, low, high)                                                                           \
  "ldr q0, [%[c], #" #low "]\n ldr q1, [%[c], #" #high "]\n"                                                 \
  "zip1 v" #x ".2d, v0.2d, v1.2d\n zip2 v" #y ".2d, v0.2d, v1.2d\n"
#define HEED_BY_COLUMNS(x, y)                                                                                \
  "zip1 v0.2d, v" #x ".2d, v" #y ".2d\n zip2 v1.2d, v" #x ".2d, v" #y ".2d\n"
// One by one: an `stp` takes four times as long as a `str` (Neoverse-V1).
#define HEED_WRITE(low, high) "str q0, [%[c], #" #low "]\n str q1, [%[c], #" #high "]\n"
#define HEED_STORE(x, y, low, high) HEED_BY_COLUMNS(x, y) HEED_WRITE(low, high)
#define HEED_SCALE(x, y, low, high)                                                                          \
  HEED_BY_COLUMNS(x, y) "fmul v0.4s, v0.4s, v2.4s\n fmul v1.4s, v1.4s, v2.4s\n" HEED_WRITE(low, high)

#define HEED_PRODUCT(size, begin, end)                                                                       \
  asm volatile(HEED_SUMS_##size(begin)                                                                       \
               "1:\n" HEED_TWO_STEPS_##size                                                                  \
               "subs %[n], %[n], #8\n"                                                                       \
               "b.ne 1b\n"                                                                                   \
               "ld1r {v2.4s}, [%[scale]]\n" HEED_SUMS_##size(end)                                            \
               : [a] "+r"(a), [b] "+r"(b), [b1] "+r"(b1), [b2] "+r"(b2), [n] "+r"(n)                         \
               : [c] "r"(c), [scale] "r"(&t.scale)                                                           \
               : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", \
                 "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", \
                 "v27", "v28", "v29", "v30", "v31")
#define HEED_PRODUCT_FROM(size)                                                                              \
  if constexpr (start == Start::zero)                                                                        \
    HEED_PRODUCT(size, HEED_ZERO, HEED_SCALE);                                                               \
  else                                                                                                       \
    HEED_PRODUCT(size, HEED_LOAD, HEED_STORE)

// clang-format on

namespace heed::cpu::HEED_THIS_TARGET {

// A panel times tiles of eight columns.
struct Bf16Product {
  const std::uint16_t* rows;     // (depth / 4, rows, 4)
  const std::uint16_t* columns;  // tiles, each (depth / 4, 8, 4), tile_stride halves apart
  std::int64_t tile_stride, tiles;
  std::int64_t depth;  // a multiple of 8
  float scale = 1;     // of a product that starts from zero
};

// c(columns, rows) = [c +] the product over `tiles` tiles from `first` on.
template <Vector S, Start start, int tiles>
inline void multiply_tiles(const Bf16Product& t, std::int64_t first, float* c) {
  constexpr int vectors = S::panel_vectors;
  static_assert(vectors == 3 ? tiles == 1 : vectors == 1 && tiles <= 3);
  // fault: bfmmla-tile-twice
  const std::uint16_t *a = t.rows, *b = t.columns + first * t.tile_stride, *b1 = b + t.tile_stride,
                      *b2 = b1 + t.tile_stride;
  std::int64_t n = t.depth;
  c += first * S::tile_columns * Tile<S>::rows;
  if constexpr (vectors == 3) {
    HEED_PRODUCT_FROM(12);
  } else if constexpr (tiles == 1) {
    HEED_PRODUCT_FROM(4x1);
  } else if constexpr (tiles == 2) {
    HEED_PRODUCT_FROM(4x2);
  } else {
    HEED_PRODUCT_FROM(4x3);
  }
}

// c(columns, rows) = scale * rows * columns, or c += rows * columns.
template <Vector S, Start start>
inline void bf16_product(const Bf16Product& t, float* c) {
  std::int64_t tile = 0;
  if constexpr (S::panel_vectors == 1) {
    for (; tile + 3 <= t.tiles; tile += 3) multiply_tiles<S, start, 3>(t, tile, c);
    if (tile + 2 == t.tiles) return multiply_tiles<S, start, 2>(t, tile, c);
  }
  for (; tile < t.tiles; ++tile) multiply_tiles<S, start, 1>(t, tile, c);
}

}  // namespace heed::cpu::HEED_THIS_TARGET

#undef HEED_MULTIPLY
#undef HEED_ROWS
#undef HEED_STEP_12
#undef HEED_TWO_STEPS_12
#undef HEED_TILE_4
#undef HEED_STEP_4x1
#undef HEED_STEP_4x2
#undef HEED_STEP_4x3
#undef HEED_TWO_STEPS_4x1
#undef HEED_TWO_STEPS_4x2
#undef HEED_TWO_STEPS_4x3
#undef HEED_SUMS_12
#undef HEED_SUMS_4x1
#undef HEED_SUMS_4x2
#undef HEED_SUMS_4x3
#undef HEED_ZERO
#undef HEED_LOAD
#undef HEED_BY_COLUMNS
#undef HEED_WRITE
#undef HEED_STORE
#undef HEED_SCALE
#undef HEED_PRODUCT
#undef HEED_PRODUCT_FROM
