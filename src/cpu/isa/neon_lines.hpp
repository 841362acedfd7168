// SPDX-License-Identifier: Apache-2.0
// Rows times lines for AArch64 in assembly: sixteen sums stay in registers, which g++ 12 would keep in
// memory. To add values, dimensions lie on the lanes and v16+4r ... are row r; to score four rows, the rows
// lie on the lanes and v16+n is key n, so that nothing is left to transpose.
//
//   v0-v3    a line, as f32
//   v4       the factors of four rows
//   v5-v7    a line before it is widened, by zipping it with zeros: a bf16 becomes the high half of its f32,
//   an
//            int8 the high byte of 2^24 times itself. Shifts would do the same, but on one pipe only.
//   v8       zero
//   v16-v31  the sums
#pragma once
#include "cpu/decode/lines.hpp"
#include "cpu/isa/neon.hpp"
#include "cpu/isa/vector.hpp"

// clang-format off: a line of assembly is a line here.

// One row of sums: v16+4r ... from the four vectors of the line.
#define HEED_ROW(a, b, c, d, lane)                                                                \
  "fmla v" #a ".4s, v0.4s, v4.s[" #lane "]\n" "fmla v" #b ".4s, v1.4s, v4.s[" #lane "]\n"         \
  "fmla v" #c ".4s, v2.4s, v4.s[" #lane "]\n" "fmla v" #d ".4s, v3.4s, v4.s[" #lane "]\n"
#define HEED_ROWS_1 HEED_ROW(16, 17, 18, 19, 0)
#define HEED_ROWS_2 HEED_ROWS_1 HEED_ROW(20, 21, 22, 23, 1)
#define HEED_ROWS_3 HEED_ROWS_2 HEED_ROW(24, 25, 26, 27, 2)
#define HEED_ROWS_4 HEED_ROWS_3 HEED_ROW(28, 29, 30, 31, 3)

#define HEED_LINE_f32 "ldp q0, q1, [%[line]]\n ldp q2, q3, [%[line], #32]\n add %[line], %[line], #64\n"
#define HEED_LINE_bf16                                                                            \
  "ldp q5, q6, [%[line]], #32\n"                                                                  \
  "zip1 v0.8h, v8.8h, v5.8h\n zip2 v1.8h, v8.8h, v5.8h\n zip1 v2.8h, v8.8h, v6.8h\n zip2 v3.8h, v8.8h, v6.8h\n"
#define HEED_LINE_f16                                                                             \
  "ldp q5, q6, [%[line]], #32\n"                                                                  \
  "fcvtl v0.4s, v5.4h\n fcvtl2 v1.4s, v5.8h\n fcvtl v2.4s, v6.4h\n fcvtl2 v3.4s, v6.8h\n"
#define HEED_LINE_int8                                                                              \
  "ldr q5, [%[line]], #16\n zip1 v6.16b, v8.16b, v5.16b\n zip2 v7.16b, v8.16b, v5.16b\n"          \
  "zip1 v0.8h, v8.8h, v6.8h\n zip2 v1.8h, v8.8h, v6.8h\n zip1 v2.8h, v8.8h, v7.8h\n zip2 v3.8h, v8.8h, v7.8h\n" \
  "scvtf v0.4s, v0.4s, #24\n scvtf v1.4s, v1.4s, #24\n scvtf v2.4s, v2.4s, #24\n scvtf v3.4s, v3.4s, #24\n"

#define HEED_SUMS(verb)                                                                           \
  #verb " q16, q17, [%[sum0]]\n" #verb " q18, q19, [%[sum0], #32]\n"                              \
  #verb " q20, q21, [%[sum1]]\n" #verb " q22, q23, [%[sum1], #32]\n"                              \
  #verb " q24, q25, [%[sum2]]\n" #verb " q26, q27, [%[sum2], #32]\n"                              \
  #verb " q28, q29, [%[sum3]]\n" #verb " q30, q31, [%[sum3], #32]\n"

#define HEED_ADD_LINES(line_of_type, rows)                                                        \
  asm volatile(HEED_SUMS(ldp) "movi v8.4s, #0\n"                                                  \
               "1:\n"                                                                             \
               "ldr q4, [%[factors]]\n add %[factors], %[factors], %[stride]\n"                   \
               "prfm pldl1keep, [%[ahead]]\n add %[ahead], %[ahead], %[bytes]\n"                  \
               line_of_type rows                                                                  \
               "subs %[count], %[count], #1\n"                                                    \
               "b.ne 1b\n" HEED_SUMS(stp)                                                         \
               : [factors] "+r"(factors), [line] "+r"(line), [count] "+r"(count), [ahead] "+r"(ahead)           \
               : [sum0] "r"(t.sum), [sum1] "r"(t.sum + t.sum_stride), [sum2] "r"(t.sum + 2 * t.sum_stride),       \
                 [sum3] "r"(t.sum + 3 * t.sum_stride), [stride] "r"(t.stride * 4),                \
                 [bytes] "i"(line_elements * bytes_of_type<type>)                                 \
               : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v16", "v17", "v18", "v19",     \
                 "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

// Whole tiles of four rows, sixteen lines written out: four cycles a key less than a loop (Neoverse-N1, 128 dimensions).
#define HEED_ADD_BLOCKS(line_of_type)                                                             \
  asm volatile("movi v8.4s, #0\n"                                                                 \
               "1:\n" HEED_SUMS(ldp) "mov %[factor], %[factors]\n"                                \
               ".rept 16\n"                                                                       \
               "ldr q4, [%[factor]]\n add %[factor], %[factor], %[stride]\n"                      \
               "prfm pldl1keep, [%[ahead]]\n add %[ahead], %[ahead], %[bytes]\n"                  \
               line_of_type HEED_ROWS_4                                                           \
               ".endr\n" HEED_SUMS(stp)                                                           \
               "add %[sum0], %[sum0], #64\n add %[sum1], %[sum1], #64\n"                          \
               "add %[sum2], %[sum2], #64\n add %[sum3], %[sum3], #64\n"                          \
               "subs %[blocks], %[blocks], #1\n"                                                  \
               "b.ne 1b\n"                                                                        \
               : [factor] "=&r"(factor), [line] "+r"(line), [blocks] "+r"(blocks), [ahead] "+r"(ahead),         \
                 [sum0] "+r"(sum[0]), [sum1] "+r"(sum[1]), [sum2] "+r"(sum[2]), [sum3] "+r"(sum[3])             \
               : [factors] "r"(t.factors), [stride] "r"(t.stride * 4),                            \
                 [bytes] "i"(line_elements * bytes_of_type<type>)                                 \
               : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v16", "v17", "v18", "v19",     \
                 "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

// The same for 16 bits, of which a line of memory has two lines: one is asked for with every second of them.
#define HEED_FACTORS "ld1 {v4.4s}, [%[factor]], %[stride]\n"
#define HEED_AHEAD "prfm pldl1keep, [%[ahead]]\n add %[ahead], %[ahead], #64\n"
#define HEED_ADD_HALVES(line_of_type)                                                             \
  asm volatile("movi v8.4s, #0\n"                                                                 \
               "1:\n" HEED_SUMS(ldp) "mov %[factor], %[factors]\n"                                \
               ".rept 8\n"                                                                        \
               HEED_FACTORS HEED_AHEAD line_of_type HEED_ROWS_4                                   \
               HEED_FACTORS line_of_type HEED_ROWS_4                                              \
               ".endr\n" HEED_SUMS(stp)                                                           \
               "add %[sum0], %[sum0], #64\n add %[sum1], %[sum1], #64\n"                          \
               "add %[sum2], %[sum2], #64\n add %[sum3], %[sum3], #64\n"                          \
               "subs %[blocks], %[blocks], #1\n"                                                  \
               "b.ne 1b\n"                                                                        \
               : [factor] "=&r"(factor), [line] "+r"(line), [blocks] "+r"(blocks), [ahead] "+r"(ahead),         \
                 [sum0] "+r"(sum[0]), [sum1] "+r"(sum[1]), [sum2] "+r"(sum[2]), [sum3] "+r"(sum[3])             \
               : [factors] "r"(t.factors), [stride] "r"(t.stride * 4)                             \
               : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v16", "v17", "v18", "v19",     \
                 "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

// Four keys of the line, each times the four rows.
#define HEED_KEYS(a, b, c, d, line)                                                               \
  "fmla v" #a ".4s, v4.4s, v" #line ".s[0]\n" "fmla v" #b ".4s, v4.4s, v" #line ".s[1]\n"         \
  "fmla v" #c ".4s, v4.4s, v" #line ".s[2]\n" "fmla v" #d ".4s, v4.4s, v" #line ".s[3]\n"
#define HEED_EACH_SUM(f) f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23) f(24) f(25) f(26) f(27) f(28) f(29) f(30) f(31)
#define HEED_ZERO_SUM(r) "movi v" #r ".4s, #0\n"
#define HEED_STORE_SUM(r) "str q" #r ", [%[sum]]\n add %[sum], %[sum], %[sum_stride]\n"

#define HEED_SCORE_LINES(line_of_type)                                                            \
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM) "movi v8.4s, #0\n"                                    \
               "1:\n"                                                                             \
               "ldr q4, [%[factors]]\n add %[factors], %[factors], %[stride]\n"                   \
               "prfm pldl1keep, [%[ahead]]\n add %[ahead], %[ahead], %[bytes]\n"                  \
               line_of_type HEED_KEYS(16, 17, 18, 19, 0) HEED_KEYS(20, 21, 22, 23, 1)             \
               HEED_KEYS(24, 25, 26, 27, 2) HEED_KEYS(28, 29, 30, 31, 3)                          \
               "subs %[count], %[count], #1\n"                                                    \
               "b.ne 1b\n" HEED_EACH_SUM(HEED_STORE_SUM)                                          \
               : [factors] "+r"(factors), [line] "+r"(line), [count] "+r"(count), [ahead] "+r"(ahead), [sum] "+r"(sum) \
               : [stride] "r"(t.stride * 4), [sum_stride] "r"(t.sum_stride * 4),                  \
                 [bytes] "i"(line_elements * bytes_of_type<type>)                                 \
               : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v16", "v17", "v18", "v19",     \
                 "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

#define HEED_SCORE_LINE(line_of_type)                                                             \
  HEED_FACTORS line_of_type HEED_KEYS(16, 17, 18, 19, 0) HEED_KEYS(20, 21, 22, 23, 1)             \
  HEED_KEYS(24, 25, 26, 27, 2) HEED_KEYS(28, 29, 30, 31, 3)
#define HEED_SCORE_HALVES(line_of_type)                                                           \
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM) "movi v8.4s, #0\n"                                    \
               "subs %[count], %[count], #2\n"                                                    \
               "b.lt 2f\n"                                                                        \
               "1:\n" HEED_AHEAD HEED_SCORE_LINE(line_of_type) HEED_SCORE_LINE(line_of_type)      \
               "subs %[count], %[count], #2\n"                                                    \
               "b.ge 1b\n"                                                                        \
               "2: tbz %[count], #0, 3f\n" HEED_SCORE_LINE(line_of_type)                          \
               "3:\n" HEED_EACH_SUM(HEED_STORE_SUM)                                               \
               : [factor] "+r"(factors), [line] "+r"(line), [count] "+r"(count), [ahead] "+r"(ahead), [sum] "+r"(sum)  \
               : [stride] "r"(t.stride * 4), [sum_stride] "r"(t.sum_stride * 4)                   \
               : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v16", "v17", "v18", "v19",     \
                 "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

#define HEED_ADD_LINES_OF(type)                                                                   \
  if constexpr (rows == 1) HEED_ADD_LINES(HEED_LINE_##type, HEED_ROWS_1);                         \
  if constexpr (rows == 2) HEED_ADD_LINES(HEED_LINE_##type, HEED_ROWS_2);                         \
  if constexpr (rows == 3) HEED_ADD_LINES(HEED_LINE_##type, HEED_ROWS_3);                         \
  if constexpr (rows == 4) HEED_ADD_LINES(HEED_LINE_##type, HEED_ROWS_4)

#define HEED_SPECIALISE(type, rows)                                                               \
  template <>                                                                                     \
  inline void add_lines<Neon, Type::type, rows>(const Lines& t) {                                  \
    neon_add_lines<Type::type, rows>(t);                                                          \
  }
#define HEED_SPECIALISE_ROWS(type) \
  HEED_SPECIALISE(type, 1) HEED_SPECIALISE(type, 2) HEED_SPECIALISE(type, 3) HEED_SPECIALISE(type, 4)      \
  template <>                                                                                     \
  inline void score_lines<Neon, Type::type, 4>(const Lines& t) {                                   \
    neon_score_lines<Type::type>(t);                                                              \
  }                                                                                               \
  template <>                                                                                     \
  inline void add_blocks<Neon, Type::type, 4>(Lines t, std::int64_t blocks) {                      \
    neon_add_blocks<Type::type>(t, blocks);                                                       \
  }

namespace heed::cpu::HEED_THIS_TARGET {

template <Type type, int rows>
static inline void neon_add_lines(const Lines& t) {
  const float* factors = t.factors;
  const void *line = t.lines, *ahead = t.ahead;
  std::int64_t count = t.count;  // at least 1
  if constexpr (type == Type::f32) {
    HEED_ADD_LINES_OF(f32);
  }
  if constexpr (type == Type::bf16) {
    HEED_ADD_LINES_OF(bf16);
  }
  if constexpr (type == Type::f16) {
    HEED_ADD_LINES_OF(f16);
  }
  if constexpr (type == Type::int8) {
    HEED_ADD_LINES_OF(int8);
  }
}

template <Type type>
static inline void neon_add_blocks(const Lines& t, std::int64_t blocks) {
  // fault: block-of-the-last-tile
  if (t.count < line_elements) return add_one_by_one<Neon, type, 4>(t, blocks);  // the last tile of a sequence
  const void *line = t.lines, *ahead = t.ahead;
  const float* factor;
  float* sum[4] = {t.sum, t.sum + t.sum_stride, t.sum + 2 * t.sum_stride, t.sum + 3 * t.sum_stride};
  if constexpr (type == Type::f32) HEED_ADD_BLOCKS(HEED_LINE_f32);
  if constexpr (type == Type::bf16) HEED_ADD_HALVES(HEED_LINE_bf16);
  if constexpr (type == Type::f16) HEED_ADD_HALVES(HEED_LINE_f16);
  if constexpr (type == Type::int8) HEED_ADD_BLOCKS(HEED_LINE_int8);
}

template <Type type>
static inline void neon_score_lines(const Lines& t) {
  const float* factors = t.factors;
  const void *line = t.lines, *ahead = t.ahead;
  std::int64_t count = t.count;
  float* sum = t.sum;
  if constexpr (type == Type::f32) HEED_SCORE_LINES(HEED_LINE_f32);
  if constexpr (type == Type::bf16) HEED_SCORE_HALVES(HEED_LINE_bf16);
  if constexpr (type == Type::f16) HEED_SCORE_HALVES(HEED_LINE_f16);
  if constexpr (type == Type::int8) HEED_SCORE_LINES(HEED_LINE_int8);
}

HEED_SPECIALISE_ROWS(f32)
HEED_SPECIALISE_ROWS(bf16)
HEED_SPECIALISE_ROWS(f16)
HEED_SPECIALISE_ROWS(int8)

}  // namespace heed::cpu::HEED_THIS_TARGET

#undef HEED_ROW
#undef HEED_ROWS_1
#undef HEED_ROWS_2
#undef HEED_ROWS_3
#undef HEED_ROWS_4
#undef HEED_LINE_f32
#undef HEED_LINE_bf16
#undef HEED_LINE_f16
#undef HEED_LINE_int8
#undef HEED_SUMS
#undef HEED_ADD_LINES
#undef HEED_ADD_LINES_OF
#undef HEED_ADD_BLOCKS
#undef HEED_KEYS
#undef HEED_EACH_SUM
#undef HEED_ZERO_SUM
#undef HEED_STORE_SUM
#undef HEED_SCORE_LINES
#undef HEED_SCORE_LINE
#undef HEED_SCORE_HALVES
#undef HEED_ADD_HALVES
#undef HEED_FACTORS
#undef HEED_AHEAD
#undef HEED_SPECIALISE
#undef HEED_SPECIALISE_ROWS
