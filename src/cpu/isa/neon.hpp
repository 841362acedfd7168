// SPDX-License-Identifier: Apache-2.0
// Four lanes of Arm's Advanced SIMD, present on every AArch64 machine: the vector, then in assembly the
// product of a panel and a tile, and scores into weights. Decode's micro-kernels are in neon_decode.hpp.
#pragma once
#include <arm_neon.h>

#include <cstdint>

#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/softmax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct Neon {
  using F = float32x4_t;
  static constexpr int lanes = 4;
  static constexpr int panel_vectors = 3;  // 12 x 8 uses 24 accumulators of 32 registers
  static constexpr int tile_columns = 8;

  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F x) { vst1q_f32(p, x); }
  static F fill(float x) { return vdupq_n_f32(x); }
  // FMLA overwrites its addend. Copying a constant to it takes a vector pipe that the products need; loading
  // it does not, and the compiler would not choose so by itself.
  static F addend(const float* filled) {
    F result;
    asm volatile("ldr %q0, %1" : "=w"(result) : "m"(*reinterpret_cast<const float(*)[4]>(filled)));
    return result;
  }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F max(F a, F b) { return vmaxq_f32(a, b); }
  static F abs(F a) { return vabsq_f32(a); }
  static F less(F a, F b, F then, F otherwise) { return vbslq_f32(vcltq_f32(a, b), then, otherwise); }
  static F copy_sign(F magnitude, F sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude); }
  static F power_of_two(F z) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(z), 23)); }
  static void transpose(const float* const from[4], float* to, std::int64_t width) {
    const float32x4x2_t even = vzipq_f32(load(from[0]), load(from[2])),
                        odd = vzipq_f32(load(from[1]), load(from[3]));  // fault: transpose-wrong-lane
    for (int half = 0; half < 2; ++half) {
      const float32x4x2_t both = vzipq_f32(even.val[half], odd.val[half]);
      store(to + 2 * half * width, both.val[0]);
      store(to + (2 * half + 1) * width, both.val[1]);
    }
  }
  using Four = float32x4_t;
  static Four load_four(const float* p) { return vld1q_f32(p); }
  template <int lane>
  static F fma_lane(F x, Four four, F a) {
    return vfmaq_laneq_f32(a, x, four, lane);
  }
  // A load whose result nobody reads: software prefetches are slower.
  static void prefetch(const void* p) { asm volatile("ldr wzr, [%0]" : : "r"(p)); }
  static F load_bf16(const std::uint16_t* p) {  // zipping takes either pipe of Neoverse-N1, shifting one
    const uint16x8_t halves = vcombine_u16(vld1_u16(p), vcreate_u16(0));
    return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), halves));
  }
  static F load_i8(const std::int8_t* p) {
    std::uint32_t four;
    __builtin_memcpy(&four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
  }
  static F load_f16(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  // Two vectors side by side with one load.
  static void load_two_bf16(const std::uint16_t* p, F* x) {
    const uint16x8_t halves = vld1q_u16(p), zero = vdupq_n_u16(0);
    x[0] = vreinterpretq_f32_u16(vzip1q_u16(zero, halves)),
    x[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, halves));
  }
  static void load_two_f16(const std::uint16_t* p, F* x) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
    x[0] = vcvt_f32_f16(vget_low_f16(halves)), x[1] = vcvt_high_f32_f16(halves);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET

// tile_product() of 12 x 8 in assembly: g++ 12 spills its 24 accumulators when it is written in
// intrinsics (46 % of peak against 79 %, Neoverse-V1). Loads run one step before the products; nothing is
// read beyond the operands. Tiles of b follow each other, and b is prefetched 16 steps early, which the core
// itself does not do across pages: a projection of 1536 inputs takes 1 % less, as does the backward
// pass of grouped heads (Neoverse-N1, November 2026).
//
//   v8 ... v31   the sums: column n of vector v is v(8 + 3n + v)
//   v0-v2, v5-v7 twelve rows of a, for even and odd steps
//   v3, v4       eight columns of b

// clang-format off: a line of assembly is a line here.

#define HEED_COLUMN(s0, s1, s2, a0, a1, a2, b, lane)                                                         \
  "fmla v" #s0 ".4s, v" #a0 ".4s, v" #b ".s[" #lane                                                          \
  "]\n"                                                                                                      \
  "fmla v" #s1 ".4s, v" #a1 ".4s, v" #b ".s[" #lane                                                          \
  "]\n"                                                                                                      \
  "fmla v" #s2 ".4s, v" #a2 ".4s, v" #b ".s[" #lane "]\n"

// One step of the summed index on rows a0-a2, with the next step's loads spread between.
#define HEED_STEP(a0, a1, a2, next_a0, next_a1, next_a2, next_b0, next_b1)                                   \
  HEED_COLUMN(8, 9, 10, a0, a1, a2, 3, 0)                                                                    \
  next_a0 HEED_COLUMN(11, 12, 13, a0, a1, a2, 3, 1) next_a1 HEED_COLUMN(14, 15, 16, a0, a1, a2, 3, 2)        \
      HEED_COLUMN(17, 18, 19, a0, a1, a2, 3, 3) next_b0 HEED_COLUMN(20, 21, 22, a0, a1, a2, 4, 0)            \
          next_a2 HEED_COLUMN(23, 24, 25, a0, a1, a2, 4, 1) HEED_COLUMN(26, 27, 28, a0, a1, a2, 4, 2)        \
              HEED_COLUMN(29, 30, 31, a0, a1, a2, 4, 3) next_b1

#define HEED_LOAD(q, from) "ldr q" #q ", [%[" #from "]], #16\n"
#define HEED_EVEN                                                                                            \
  HEED_STEP(0, 1, 2, HEED_LOAD(5, a), HEED_LOAD(6, a), HEED_LOAD(7, a), HEED_LOAD(3, b), HEED_LOAD(4, b))
#define HEED_ODD                                                                                             \
  HEED_STEP(5, 6, 7, HEED_LOAD(0, a), HEED_LOAD(1, a), HEED_LOAD(2, a), HEED_LOAD(3, b), HEED_LOAD(4, b))
// The last step; a column's sums leave while the next ones are multiplied.
// fault: tail-of-the-assembly
#define HEED_LAST(leave)                                                                                     \
  HEED_COLUMN(8, 9, 10, 5, 6, 7, 3, 0)                                                                       \
  HEED_COLUMN(11, 12, 13, 5, 6, 7, 3, 1) leave(8, 0) leave(9, 16) leave(10, 32)                              \
  HEED_COLUMN(14, 15, 16, 5, 6, 7, 3, 2) leave(11, 48) leave(12, 64) leave(13, 80)                           \
  HEED_COLUMN(17, 18, 19, 5, 6, 7, 3, 3) leave(14, 96) leave(15, 112) leave(16, 128)                         \
  HEED_COLUMN(20, 21, 22, 5, 6, 7, 4, 0) leave(17, 144) leave(18, 160) leave(19, 176)                        \
  HEED_COLUMN(23, 24, 25, 5, 6, 7, 4, 1) leave(20, 192) leave(21, 208) leave(22, 224)                        \
  HEED_COLUMN(26, 27, 28, 5, 6, 7, 4, 2) leave(23, 240) leave(24, 256) leave(25, 272)                        \
  HEED_COLUMN(29, 30, 31, 5, 6, 7, 4, 3) leave(26, 288) leave(27, 304) leave(28, 320)                        \
  leave(29, 336) leave(30, 352) leave(31, 368)

#define HEED_EACH_SUM(f)                                                                                     \
  f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15) f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23) f(24)        \
      f(25) f(26) f(27) f(28) f(29) f(30) f(31)
#define HEED_ZERO_SUM(r) "movi v" #r ".4s, #0\n"
// Of a sum register and its place in c.
#define HEED_STORE_SUM(r, place) "str q" #r ", [%[c], #" #place "]\n"

#define HEED_ADD_SUM(r, place)                                                                               \
  "ldr q0, [%[c], #" #place "]\n fadd v" #r ".4s, v" #r ".4s, v0.4s\n" HEED_STORE_SUM(r, place)

#define HEED_TILE_PRODUCT(leave)                                                                             \
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM)                                                                  \
               HEED_LOAD(0, a) HEED_LOAD(1, a) HEED_LOAD(2, a) HEED_LOAD(3, b) HEED_LOAD(4, b)               \
               "subs %[n], %[n], #2\n"                                                                       \
               "b.eq 2f\n"                                                                                   \
               "1:\n"                                                                                        \
               "prfm pldl1keep, [%[b], #512]\n" HEED_EVEN HEED_ODD                                           \
               "subs %[n], %[n], #2\n"                                                                       \
               "b.ne 1b\n"                                                                                   \
               "2:\n" HEED_EVEN HEED_LAST(leave)                                                             \
               : [a] "+r"(a), [b] "+r"(b), [n] "+r"(depth)                                                   \
               : [c] "r"(c)                                                                                  \
               : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", \
                 "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", \
                 "v27", "v28", "v29", "v30", "v31")

// clang-format on

namespace heed::cpu::HEED_THIS_TARGET {

// Inlined whatever else is in the loop: a call for every tile costs prefill 0.4 %.
template <>
[[gnu::always_inline]] inline void tile_product<Neon, Start::zero>(const float* a, const float* b,
                                                                   std::int64_t depth, float* c) {
  HEED_TILE_PRODUCT(HEED_STORE_SUM);
}

template <>
[[gnu::always_inline]] inline void tile_product<Neon, Start::apart>(const float* a, const float* b,
                                                                    std::int64_t depth, float* c) {
  HEED_TILE_PRODUCT(HEED_ADD_SUM);
}

}  // namespace heed::cpu::HEED_THIS_TARGET

// clang-format off: a line of assembly is a line here.

#undef HEED_COLUMN
#undef HEED_STEP
#undef HEED_LOAD
#undef HEED_EVEN
#undef HEED_ODD
#undef HEED_LAST
#undef HEED_EACH_SUM
#undef HEED_ZERO_SUM
#undef HEED_STORE_SUM
#undef HEED_ADD_SUM
#undef HEED_TILE_PRODUCT

// weigh() of softmax.hpp in assembly: eight exponentials in lock-step, because eight multiply-adds take the
// two pipes of a Neoverse-N1 the four cycles that each of them waits for the last. In the same order for all
// eight, because on that core a sum that follows a multiply-add costs a cycle more: both would end at once.
// 7.3 cycles a vector; the compiler's code takes 9.3, and 13 instructions and a store on two pipes 7.
//
//   v0-v7     the score, then its difference from the maximum, x
//   v8-v15    2^round(scale * x), and what it is made from
//   v16-v23   the rest of scale * x, and before it the maxima
//   v0-v7, 24 the polynomial; FMLA overwrites its addend, so each goes to the register that the last freed
//   v25-v27   the sums, or with one vector a key the sum of whole chains in v26
//   v28-v31   the lowest x, the magic number, the highest term, the scale

// Lists of the registers of eight vectors.
#define HEED_X 0, 1, 2, 3, 4, 5, 6, 7
#define HEED_Z 8, 9, 10, 11, 12, 13, 14, 15
#define HEED_REST 16, 17, 18, 19, 20, 21, 22, 23
#define HEED_P_4 0, 1, 2, 3, 4, 5, 6, 7
#define HEED_P_3 24, 0, 1, 2, 3, 4, 5, 6
#define HEED_P_2 7, 24, 0, 1, 2, 3, 4, 5
#define HEED_P_1 6, 7, 24, 0, 1, 2, 3, 4
#define HEED_P 5, 6, 7, 24, 0, 1, 2, 3
// Which maximum and which sum: a panel's key has three vectors, so eight vectors begin in three different
// places.
#define HEED_MAX_0 16, 17, 18, 16, 17, 18, 16, 17
#define HEED_SUM_0 25, 26, 27, 25, 26, 27, 25, 26
#define HEED_MAX_1 18, 16, 17, 18, 16, 17, 18, 16
#define HEED_SUM_1 27, 25, 26, 27, 25, 26, 27, 25
// fault: weights-of-another-maximum
#define HEED_MAX_2 17, 18, 16, 17, 18, 16, 17, 18
#define HEED_SUM_2 26, 27, 25, 26, 27, 25, 26, 27
#define HEED_MAX_ONE 16, 16, 16, 16, 16, 16, 16, 16
// fault: sum-of-seven
#define HEED_SUM_ONE 25, 25, 25, 25, 25, 25, 25, 25

// HEED_EACH_N(step, lists...) writes a step eight times, the n-th with the n-th register of each of N lists.
#define HEED_EACH_1(step, x) HEED_EACH_OF_1(step, x)
#define HEED_EACH_2(step, x, y) HEED_EACH_OF_2(step, x, y)
#define HEED_EACH_3(step, x, y, z) HEED_EACH_OF_3(step, x, y, z)
#define HEED_EACH_OF_1(step, x0, x1, x2, x3, x4, x5, x6, x7)                                                 \
  step(x0) step(x1) step(x2) step(x3) step(x4) step(x5) step(x6) step(x7)
#define HEED_EACH_OF_2(step, x0, x1, x2, x3, x4, x5, x6, x7, y0, y1, y2, y3, y4, y5, y6, y7)                 \
  step(x0, y0) step(x1, y1) step(x2, y2) step(x3, y3) step(x4, y4) step(x5, y5) step(x6, y6) step(x7, y7)
#define HEED_EACH_OF_3(step, x0, x1, x2, x3, x4, x5, x6, x7, y0, y1, y2, y3, y4, y5, y6, y7,                 \
                       z0, z1, z2, z3, z4, z5, z6, z7)                                                       \
  step(x0, y0, z0) step(x1, y1, z1) step(x2, y2, z2) step(x3, y3, z3)                                        \
  step(x4, y4, z4) step(x5, y5, z5) step(x6, y6, z6) step(x7, y7, z7)

// The steps, those of exp2() in arithmetic.hpp among them.
#define HEED_LOAD_SCORE(x) "ld1 {v" #x ".4s}, [%[from]], %[apart]\n"
#define HEED_SUBTRACT(x, max) "fsub v" #x ".4s, v" #x ".4s, v" #max ".4s\n"
#define HEED_CLAMP(x) "fmax v" #x ".4s, v28.4s, v" #x ".4s\n"
#define HEED_ROUND(z, x) HEED_ADDEND(5, z) "fmla v" #z ".4s, v" #x ".4s, v31.4s\n"
#define HEED_MINUS_ROUNDED(rest, z) "fsub v" #rest ".4s, v29.4s, v" #z ".4s\n"
// z becomes a power of two, and rest += scale * x. Alternately, because only one of the two pipes shifts:
// eight shifts in a row take the panel 2 % longer.
#define HEED_SHIFT_AND_ADD(z, rest, x)                                                                       \
  "shl v" #z ".4s, v" #z ".4s, #23\n" "fmla v" #rest ".4s, v" #x ".4s, v31.4s\n"
#define HEED_TERM_4(p, rest) HEED_ADDEND(4, p) "fmla v" #p ".4s, v" #rest ".4s, v30.4s\n"
#define HEED_TERM_3(p, last, rest) HEED_TERM(3, p, last, rest)
#define HEED_TERM_2(p, last, rest) HEED_TERM(2, p, last, rest)
#define HEED_TERM_1(p, last, rest) HEED_TERM(1, p, last, rest)
#define HEED_TERM_0(p, last, rest) HEED_TERM(0, p, last, rest)
#define HEED_TERM(n, p, last, rest) HEED_ADDEND(n, p) "fmla v" #p ".4s, v" #last ".4s, v" #rest ".4s\n"
#define HEED_ADDEND(n, to) "ldr q" #to ", [%[addends], #16 * " #n "]\n"
#define HEED_TIMES_POWER(p, z) "fmul v" #p ".4s, v" #p ".4s, v" #z ".4s\n"
#define HEED_STORE_WEIGHT(p) "st1 {v" #p ".4s}, [%[to]], %[apart]\n"
#define HEED_ADD_WEIGHT(sum, p) "fadd v" #sum ".4s, v" #sum ".4s, v" #p ".4s\n"

#define HEED_WEIGH_EIGHT(eight)                                                                              \
  "ldr q16, [%[max]]\n ldr q17, [%[max], #16]\n ldr q18, [%[max], #32]\n"                                    \
  HEED_EACH_1(HEED_LOAD_SCORE, HEED_X)                                                                       \
  HEED_EACH_2(HEED_SUBTRACT, HEED_X, HEED_MAX_##eight)                                                       \
  HEED_EACH_1(HEED_CLAMP, HEED_X)                                                                            \
  HEED_EACH_2(HEED_ROUND, HEED_Z, HEED_X)                                                                    \
  HEED_EACH_2(HEED_MINUS_ROUNDED, HEED_REST, HEED_Z)                                                         \
  HEED_EACH_3(HEED_SHIFT_AND_ADD, HEED_Z, HEED_REST, HEED_X)                                                 \
  HEED_EACH_2(HEED_TERM_4, HEED_P_4, HEED_REST)                                                              \
  HEED_EACH_3(HEED_TERM_3, HEED_P_3, HEED_P_4, HEED_REST)                                                    \
  HEED_EACH_3(HEED_TERM_2, HEED_P_2, HEED_P_3, HEED_REST)                                                    \
  HEED_EACH_3(HEED_TERM_1, HEED_P_1, HEED_P_2, HEED_REST)                                                    \
  HEED_EACH_3(HEED_TERM_0, HEED_P, HEED_P_1, HEED_REST)                                                      \
  HEED_EACH_2(HEED_TIMES_POWER, HEED_P, HEED_Z)                                                              \
  HEED_EACH_1(HEED_STORE_WEIGHT, HEED_P)                                                                     \
  HEED_EACH_2(HEED_ADD_WEIGHT, HEED_SUM_##eight, HEED_P)

#define HEED_OPERANDS                                                                                        \
  [addends] "r"(exp2_addends), [fixed] "r"(exp2_fixed), [lowest] "r"(&by.power.lowest),                      \
  [scale] "r"(&by.power.scale)
#define HEED_LOAD_FIXED                                                                                      \
  "ldr q28, [%[lowest]]\n ldr q29, [%[fixed]]\n ldr q30, [%[fixed], #16]\n ldr q31, [%[scale]]\n"

// Whole chains of one vector a key.
#define HEED_WEIGH_CHAINS(eight)                                                                             \
  asm volatile(                                                                                              \
      "ldr q26, [%[sum]]\n"                                                                                  \
      HEED_LOAD_FIXED                                                                                        \
      "0: movi v25.4s, #0\n"                                                                                 \
      "mov %[times], %[eights]\n"                                                                            \
      "1:\n" eight                                                                                           \
      "subs %[times], %[times], #1\n"                                                                        \
      "b.ne 1b\n"                                                                                            \
      "fadd v26.4s, v26.4s, v25.4s\n"                                                                        \
      "subs %[chains], %[chains], #1\n"                                                                      \
      "b.ne 0b\n"                                                                                            \
      "str q26, [%[sum]]\n"                                                                                  \
      : [from] "+r"(from), [to] "+r"(to), [chains] "+r"(chains), [times] "=&r"(times)                        \
      : [apart] "r"(width * 4), [eights] "i"(chain_keys / 8), [max] "r"(max), [sum] "r"(sum),                \
        HEED_OPERANDS                                                                                        \
      : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",     \
        "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",    \
        "v28", "v29", "v30", "v31")

#define HEED_WEIGH(eights)                                                                                   \
  asm volatile(                                                                                              \
      "ldr q25, [%[sum]]\n ldr q26, [%[sum], #16]\n ldr q27, [%[sum], #32]\n"                                \
      HEED_LOAD_FIXED                                                                                        \
      "1:\n" eights                                                                                          \
      "subs %[times], %[times], #1\n"                                                                        \
      "b.ne 1b\n"                                                                                            \
      "str q25, [%[sum]]\n str q26, [%[sum], #16]\n str q27, [%[sum], #32]\n"                                \
      : [from] "+r"(from), [to] "+r"(to), [times] "+r"(times)                                                \
      : [apart] "r"(apart), [max] "r"(max), [sum] "r"(sum), HEED_OPERANDS                                    \
      : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",     \
        "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",    \
        "v27", "v28", "v29", "v30", "v31")

// clang-format on

namespace heed::cpu::HEED_THIS_TARGET {

constexpr Filled exp2_addends[] = {exp2_terms[0], exp2_terms[1], exp2_terms[2],
                                   exp2_terms[3], exp2_terms[4], Filled(exponent_magic)};
constexpr Filled exp2_fixed[] = {Filled(exponent_magic), exp2_terms[5]};

// A panel: the three vectors of a key side by side, each with its own max and sum. Eight keys are three
// eights. S is Neon or made from it.
template <Vector S>
static inline void neon_weigh_panel(float* s, std::int64_t width, std::int64_t keys, const Weighing<S>& by) {
  const Neon::F* max = by.max;
  Neon::F* sum = by.sum;
  const float* from = s;
  float* to = s;
  std::int64_t times = keys / 8;
  const std::int64_t apart = sizeof(Neon::F);
  if (times > 0) HEED_WEIGH(HEED_WEIGH_EIGHT(0) HEED_WEIGH_EIGHT(1) HEED_WEIGH_EIGHT(2));
  for (std::int64_t j = keys / 8 * 8; j < keys; ++j) weigh_together<S, 3, 1>(s + j * width, width, by);
}

// One vector a key, and one max and sum for all.
template <Vector S>
static inline void neon_weigh_vector(float* s, std::int64_t width, std::int64_t keys, const Weighing<S>& by) {
  const float* from = s;
  float* to = s;
  std::int64_t times = keys / 8;
  if (times > 0) {
    const std::int64_t apart = width * 4;
    const Neon::F max[3] = {*by.max, *by.max, *by.max};
    Neon::F sum[3] = {*by.sum, *by.sum, *by.sum};
    HEED_WEIGH(HEED_WEIGH_EIGHT(ONE));
    *by.sum = sum[0];
  }
  for (std::int64_t j = keys / 8 * 8; j < keys; ++j) weigh_together<S, 1, 1>(s + j * width, width, by);
}

template <Vector S>
static inline void neon_weigh_chains(float* s, std::int64_t width, std::int64_t chains,
                                     const Weighing<S>& by) {
  Neon::F* sum = by.sum;
  const float* from = s;
  float* to = s;
  std::int64_t times;
  const Neon::F max[3] = {*by.max, *by.max, *by.max};
  if (chains > 0) HEED_WEIGH_CHAINS(HEED_WEIGH_EIGHT(ONE));
}

template <>
inline void weigh<Neon, 3>(float* s, std::int64_t width, std::int64_t keys, const Weighing<Neon>& by) {
  neon_weigh_panel<Neon>(s, width, keys, by);
}
template <>
inline void weigh<Neon, 1>(float* s, std::int64_t width, std::int64_t keys, const Weighing<Neon>& by) {
  neon_weigh_vector<Neon>(s, width, keys, by);
}
template <>
inline void weigh_chains<Neon, 1>(float* s, std::int64_t width, std::int64_t chains,
                                  const Weighing<Neon>& by) {
  neon_weigh_chains<Neon>(s, width, chains, by);
}

}  // namespace heed::cpu::HEED_THIS_TARGET

#undef HEED_Z
#undef HEED_X
#undef HEED_REST
#undef HEED_P
#undef HEED_P_4
#undef HEED_P_3
#undef HEED_P_2
#undef HEED_P_1
#undef HEED_MAX_0
#undef HEED_SUM_0
#undef HEED_MAX_1
#undef HEED_SUM_1
#undef HEED_MAX_2
#undef HEED_SUM_2
#undef HEED_MAX_ONE
#undef HEED_SUM_ONE
#undef HEED_EACH_1
#undef HEED_EACH_2
#undef HEED_EACH_3
#undef HEED_EACH_OF_1
#undef HEED_EACH_OF_2
#undef HEED_EACH_OF_3
#undef HEED_LOAD_SCORE
#undef HEED_SUBTRACT
#undef HEED_CLAMP
#undef HEED_ROUND
#undef HEED_MINUS_ROUNDED
#undef HEED_SHIFT_AND_ADD
#undef HEED_TERM_4
#undef HEED_TERM
#undef HEED_TERM_3
#undef HEED_TERM_2
#undef HEED_TERM_1
#undef HEED_TERM_0
#undef HEED_ADDEND
#undef HEED_TIMES_POWER
#undef HEED_STORE_WEIGHT
#undef HEED_ADD_WEIGHT
#undef HEED_WEIGH_EIGHT
#undef HEED_WEIGH
#undef HEED_OPERANDS
#undef HEED_LOAD_FIXED
#undef HEED_WEIGH_CHAINS
