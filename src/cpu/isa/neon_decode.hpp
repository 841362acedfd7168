// SPDX-License-Identifier: Apache-2.0
// Decode's micro-kernels (decode/product.hpp) for AArch64 in assembly: sixteen sums stay in registers, which
// g++ 12 would keep in memory, as it would the pointers of eight keys. First eight keys times rows (Dots),
// then rows times lines of a cache (Lines). Each macro is a piece of assembly: a load in each type, one step
// of multiply-adds, and the loop around them.
#pragma once

#include "cpu/decode/product.hpp"
#include "cpu/isa/neon.hpp"
#include "cpu/isa/vector.hpp"

// Eight dot products.
//
//                  f32, or 4 x 16 bits   8 x 16 bits                     two vectors of rows
//   v0-v7          4 dims of each key    8 dims of each key              4 dims of each key
//   v8-v15         -                     4 of them, as f32               v8-v11: two dims of both vectors
//   v16-v19        4 dims of the rows    4 dims of the rows              sums
//   zero           v12                   v20                             v12
//   the sums       v24-v31               v24-v31                         v16-v23, v24-v31
//
// clang-format off: a line of assembly is a line here.

// One dimension of the rows, in v<x>, times that of eight keys, in lanes of v0-v7.
#define HEED_LANE(x, lane)                                                                                   \
  "fmla v24.4s, v" #x ".4s, v0.s[" #lane "]\n" "fmla v25.4s, v" #x ".4s, v1.s[" #lane "]\n"                  \
  "fmla v26.4s, v" #x ".4s, v2.s[" #lane "]\n" "fmla v27.4s, v" #x ".4s, v3.s[" #lane "]\n"                  \
  "fmla v28.4s, v" #x ".4s, v4.s[" #lane "]\n" "fmla v29.4s, v" #x ".4s, v5.s[" #lane "]\n"                  \
  "fmla v30.4s, v" #x ".4s, v6.s[" #lane "]\n" "fmla v31.4s, v" #x ".4s, v7.s[" #lane "]\n"
// The same in lanes of v8-v15.
#define HEED_LOW_LANE(x, lane)                                                                               \
  "fmla v24.4s, v" #x ".4s, v8.s[" #lane "]\n" "fmla v25.4s, v" #x ".4s, v9.s[" #lane "]\n"                  \
  "fmla v26.4s, v" #x ".4s, v10.s[" #lane "]\n" "fmla v27.4s, v" #x ".4s, v11.s[" #lane "]\n"                \
  "fmla v28.4s, v" #x ".4s, v12.s[" #lane "]\n" "fmla v29.4s, v" #x ".4s, v13.s[" #lane "]\n"                \
  "fmla v30.4s, v" #x ".4s, v14.s[" #lane "]\n" "fmla v31.4s, v" #x ".4s, v15.s[" #lane "]\n"
// The same of both vectors of rows.
#define HEED_LANE_TWICE(a, b, lane)                                                                          \
  "fmla v16.4s, v" #a ".4s, v0.s[" #lane "]\n" "fmla v24.4s, v" #b ".4s, v0.s[" #lane "]\n"                  \
  "fmla v17.4s, v" #a ".4s, v1.s[" #lane "]\n" "fmla v25.4s, v" #b ".4s, v1.s[" #lane "]\n"                  \
  "fmla v18.4s, v" #a ".4s, v2.s[" #lane "]\n" "fmla v26.4s, v" #b ".4s, v2.s[" #lane "]\n"                  \
  "fmla v19.4s, v" #a ".4s, v3.s[" #lane "]\n" "fmla v27.4s, v" #b ".4s, v3.s[" #lane "]\n"                  \
  "fmla v20.4s, v" #a ".4s, v4.s[" #lane "]\n" "fmla v28.4s, v" #b ".4s, v4.s[" #lane "]\n"                  \
  "fmla v21.4s, v" #a ".4s, v5.s[" #lane "]\n" "fmla v29.4s, v" #b ".4s, v5.s[" #lane "]\n"                  \
  "fmla v22.4s, v" #a ".4s, v6.s[" #lane "]\n" "fmla v30.4s, v" #b ".4s, v6.s[" #lane "]\n"                  \
  "fmla v23.4s, v" #a ".4s, v7.s[" #lane "]\n" "fmla v31.4s, v" #b ".4s, v7.s[" #lane "]\n"

// Four elements of each key, widened to f32 in v0-v7.
#define HEED_KEYS_f32                                                                                        \
  "ldr q0, [%[k0]], #16\n ldr q1, [%[k1]], #16\n ldr q2, [%[k2]], #16\n ldr q3, [%[k3]], #16\n"              \
  "ldr q4, [%[k4]], #16\n ldr q5, [%[k5]], #16\n ldr q6, [%[k6]], #16\n ldr q7, [%[k7]], #16\n"
#define HEED_KEYS_16(widen)                                                                                  \
  "ldr d0, [%[k0]], #8\n ldr d1, [%[k1]], #8\n ldr d2, [%[k2]], #8\n ldr d3, [%[k3]], #8\n"                  \
  "ldr d4, [%[k4]], #8\n ldr d5, [%[k5]], #8\n ldr d6, [%[k6]], #8\n ldr d7, [%[k7]], #8\n"                  \
  widen(0) widen(1) widen(2) widen(3) widen(4) widen(5) widen(6) widen(7)
// Zipping with zeros does what a shift by 16 would, on both pipes instead of one.
#define HEED_WIDEN_bf16(v) "zip1 v" #v ".8h, v12.8h, v" #v ".8h\n"
#define HEED_WIDEN_f16(v) "fcvtl v" #v ".4s, v" #v ".4h\n"
// Of eight elements in v the lower four, and the upper four in place.
#define HEED_LOW_bf16(to, v) "zip1 v" #to ".8h, v20.8h, v" #v ".8h\n"
#define HEED_HIGH_bf16(v) "zip2 v" #v ".8h, v20.8h, v" #v ".8h\n"
#define HEED_LOW_f16(to, v) "fcvtl v" #to ".4s, v" #v ".4h\n"
#define HEED_HIGH_f16(v) "fcvtl2 v" #v ".4s, v" #v ".8h\n"

// Two dimensions of the rows: of one vector, by either instruction, and one dimension of two.
#define HEED_ROWS(x, y)                                                                                      \
  "ldr q" #x ", [%[q]]\n add %[q], %[q], %[step]\n ldr q" #y ", [%[q]]\n add %[q], %[q], %[step]\n"
#define HEED_ROWS_OF(x, y) "ld1 {v" #x ".4s}, [%[q]], %[step]\n ld1 {v" #y ".4s}, [%[q]], %[step]\n"
#define HEED_ROWS_TWICE(x, y) "ldp q" #x ", q" #y ", [%[q]]\n add %[q], %[q], %[step]\n"

// Two lines of the upcoming rows, or one twice.
#define HEED_PREFETCH_ROWS                                                                                   \
  "ldr wzr, [%[prefetched]]\n ldr wzr, [%[prefetched], %[second]]\n"                                         \
  "add %[prefetched], %[prefetched], %[lines]\n"

// The steps of the loop: four dimensions, eight of 16 bits, so that a load fills a register, and four of two
// vectors.
// fault: wrong-lane
#define HEED_STEP_4(keys)                                                                                    \
  HEED_ROWS(16, 17) keys HEED_LANE(16, 0) HEED_ROWS(18, 19) HEED_LANE(17, 1) HEED_PREFETCH_ROWS              \
  HEED_LANE(18, 2) HEED_LANE(19, 3)
#define HEED_STEP_8(low, high)                                                                               \
  HEED_ROWS_OF(16, 17) HEED_KEYS_f32                                                                         \
  low(8, 0) low(9, 1) low(10, 2) low(11, 3) low(12, 4) low(13, 5) low(14, 6) low(15, 7)                      \
  HEED_LOW_LANE(16, 0) HEED_ROWS_OF(18, 19) HEED_LOW_LANE(17, 1) HEED_PREFETCH_ROWS                          \
  HEED_LOW_LANE(18, 2) HEED_ROWS_OF(16, 17) HEED_LOW_LANE(19, 3)                                             \
  high(0) high(1) high(2) high(3) high(4) high(5) high(6) high(7)                                            \
  HEED_LANE(16, 0) HEED_ROWS_OF(18, 19) HEED_LANE(17, 1) HEED_LANE(18, 2)                                    \
  HEED_LANE(19, 3)
#define HEED_STEP_TWICE(keys)                                                                                \
  HEED_ROWS_TWICE(8, 9) HEED_ROWS_TWICE(10, 11) keys HEED_LANE_TWICE(8, 9, 0)                                \
  HEED_ROWS_TWICE(8, 9) HEED_LANE_TWICE(10, 11, 1) HEED_ROWS_TWICE(10, 11) HEED_PREFETCH_ROWS                \
  HEED_LANE_TWICE(8, 9, 2) HEED_LANE_TWICE(10, 11, 3)

#define HEED_ZERO_SUMS                                                                                       \
  "movi v24.4s, #0\n movi v25.4s, #0\n movi v26.4s, #0\n movi v27.4s, #0\n"                                  \
  "movi v28.4s, #0\n movi v29.4s, #0\n movi v30.4s, #0\n movi v31.4s, #0\n"
#define HEED_ZERO_SUMS_TWICE                                                                                 \
  "movi v16.4s, #0\n movi v17.4s, #0\n movi v18.4s, #0\n movi v19.4s, #0\n"                                  \
  "movi v20.4s, #0\n movi v21.4s, #0\n movi v22.4s, #0\n movi v23.4s, #0\n" HEED_ZERO_SUMS
#define HEED_STORE_SUMS                                                                                      \
  "stp q24, q25, [%[sum]]\n stp q26, q27, [%[sum], #32]\n"                                                   \
  "stp q28, q29, [%[sum], #64]\n stp q30, q31, [%[sum], #96]\n"
// Where the sums of two vectors go, and how far apart, is in memory: registers are short.
#define HEED_STORE_SUMS_TWICE                                                                                \
  "ldp %[q], %[n], [%[sum]]\n"                                                                               \
  "stp q16, q24, [%[q]]\n add %[q], %[q], %[n]\n stp q17, q25, [%[q]]\n add %[q], %[q], %[n]\n"              \
  "stp q18, q26, [%[q]]\n add %[q], %[q], %[n]\n stp q19, q27, [%[q]]\n add %[q], %[q], %[n]\n"              \
  "stp q20, q28, [%[q]]\n add %[q], %[q], %[n]\n stp q21, q29, [%[q]]\n add %[q], %[q], %[n]\n"              \
  "stp q22, q30, [%[q]]\n add %[q], %[q], %[n]\n stp q23, q31, [%[q]]\n"

// The loop: an eighth of the depth at a time, while one of the eight upcoming rows is prefetched, evenly over
// the steps. Behind `sums`, where they go, are the registers that change besides v0-v7, v16-v19 and v24-v31.
#define HEED_DOTS(begin, one_step, end, sums, ...)                                                           \
  asm volatile(                                                                                              \
      begin                                                                                                  \
      "0: mov %[n], %[steps]\n"                                                                              \
      "1:\n" one_step                                                                                        \
      "subs %[n], %[n], #1\n"                                                                                \
      "b.ne 1b\n"                                                                                            \
      "add %[prefetched], %[prefetched], %[next_row]\n"                                                      \
      "subs %[parts], %[parts], #1\n"                                                                        \
      "b.ne 0b\n" end                                                                                        \
      : [q] "+r"(q), [n] "=&r"(n), [parts] "+r"(parts), [prefetched] "+r"(prefetched), [k0] "+r"(k[0]),      \
        [k1] "+r"(k[1]), [k2] "+r"(k[2]), [k3] "+r"(k[3]), [k4] "+r"(k[4]), [k5] "+r"(k[5]), [k6] "+r"(k[6]), \
        [k7] "+r"(k[7])                                                                                      \
      : [step] "r"(t.q_stride * 4), [sum] "r"(sums), [steps] "r"(steps), [second] "r"(second),               \
        [lines] "r"(lines), [next_row] "r"(next_row)                                                         \
      : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v24",   \
        "v25", "v26", "v27", "v28", "v29", "v30", "v31", __VA_ARGS__)

#define HEED_EIGHT_DOTS(keys)                                                                                \
  HEED_DOTS(HEED_ZERO_SUMS "movi v12.4s, #0\n", HEED_STEP_4(keys), HEED_STORE_SUMS, sum, "v12")
#define HEED_EIGHT_DOTS_OF_HALVES(low, high)                                                                 \
  HEED_DOTS(HEED_ZERO_SUMS "movi v20.4s, #0\n", HEED_STEP_8(low, high), HEED_STORE_SUMS, sum,                \
            "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v20")
#define HEED_EIGHT_DOTS_TWICE(keys)                                                                          \
  HEED_DOTS(HEED_ZERO_SUMS_TWICE "movi v12.4s, #0\n", HEED_STEP_TWICE(keys), HEED_STORE_SUMS_TWICE, &end,    \
            "v8", "v9", "v10", "v11", "v12", "v20", "v21", "v22", "v23")

// clang-format on

namespace heed::cpu::HEED_THIS_TARGET {

template <Type type>
inline constexpr bool dots_take<Neon, type> = true;

// Neoverse-N1, 49 rows in 5 panels of 12 or 13 vectors of 4: 49 keys of 32 dimensions take 15.5 us instead of
// 18.6, of 64 dimensions 26.1 instead of 32.5; where panels are full, 36, 48 and 60 rows, between 0.88 and
// 1.05 times as long for 49 to 256 keys (November 2026).
template <>
inline constexpr std::int64_t max_short_rows<Neon> = 64;

// One chain, for one or two vectors of rows. The first takes the place of s, others are added to it.
template <Type type, int vectors, Start start>
static inline void neon_chain(const Dots& t) {
  constexpr std::int64_t bytes = type == Type::f32 ? 4 : 2;
  constexpr bool adds = start == Start::sum;
  const char* k[keys_per_dots];
  for (int i = 0; i < keys_per_dots; ++i) k[i] = static_cast<const char*>(t.k) + i * t.k_stride * bytes;
  const float* q = t.q;
  const bool prefetches = t.next.rows && t.depth % 32 == 0;
  const void* prefetched = prefetches ? t.next.rows : t.q;
  // A step is four dimensions of eight keys: two cache lines of f32, one of 16 bits.
  // Eight dimensions of 16 bits are two again.
  const bool takes_eight = type != Type::f32 && vectors == 1 && t.depth % 64 == 0;
  const std::int64_t dims = takes_eight ? 8 : 4, step_bytes = keys_per_dots * dims * bytes;
  const std::int64_t lines = prefetches ? step_bytes : 0, second = prefetches && step_bytes > 64 ? 64 : 0;
  const std::int64_t steps = t.depth / dims / (prefetches ? 8 : 1);
  const std::int64_t next_row = prefetches ? (t.next.stride - t.depth) * bytes : 0;
  std::int64_t parts = prefetches ? 8 : 1, n;
  float32x4_t sum[keys_per_dots][vectors];
  if constexpr (vectors == 2) {
    const struct {
      float* s;
      std::int64_t stride;
    } end{adds ? reinterpret_cast<float*>(sum) : t.s, adds ? std::int64_t{sizeof(sum[0])} : t.s_stride * 4};
    if constexpr (type == Type::f32) HEED_EIGHT_DOTS_TWICE(HEED_KEYS_f32);
    if constexpr (type == Type::bf16) HEED_EIGHT_DOTS_TWICE(HEED_KEYS_16(HEED_WIDEN_bf16));
    if constexpr (type == Type::f16) HEED_EIGHT_DOTS_TWICE(HEED_KEYS_16(HEED_WIDEN_f16));
    if (!adds) return;
  } else {
    if constexpr (type == Type::f32) {
      HEED_EIGHT_DOTS(HEED_KEYS_f32);
    } else if (takes_eight) {
      if constexpr (type == Type::bf16) HEED_EIGHT_DOTS_OF_HALVES(HEED_LOW_bf16, HEED_HIGH_bf16);
      if constexpr (type == Type::f16) HEED_EIGHT_DOTS_OF_HALVES(HEED_LOW_f16, HEED_HIGH_f16);
    } else {
      if constexpr (type == Type::bf16) HEED_EIGHT_DOTS(HEED_KEYS_16(HEED_WIDEN_bf16));
      if constexpr (type == Type::f16) HEED_EIGHT_DOTS(HEED_KEYS_16(HEED_WIDEN_f16));
    }
  }
  for (int key = 0; key < keys_per_dots; ++key)
    for (int v = 0; v < vectors; ++v) {
      float* const s = t.s + key * t.s_stride + v * 4;
      vst1q_f32(s, adds ? vaddq_f32(vld1q_f32(s), sum[key][v]) : sum[key][v]);
    }
}

// Each chain prefetches its own dimensions of the upcoming keys.
template <Type type, int vectors>
static inline void neon_dots(const Dots& t) {
  if (t.depth <= chain_terms) return neon_chain<type, vectors, Start::zero>(t);
  Dots chain = t;
  chain.depth = chain_terms;
  neon_chain<type, vectors, Start::zero>(chain);
  for (std::int64_t rest = t.depth - chain_terms; rest > 0; rest -= chain_terms) {
    constexpr std::int64_t bytes = chain_terms * (type == Type::f32 ? 4 : 2);
    chain.q += chain_terms * t.q_stride, chain.k = static_cast<const char*>(chain.k) + bytes;
    if (t.next.rows) chain.next.rows = static_cast<const char*>(chain.next.rows) + bytes;
    if (rest < chain_terms) chain.depth = rest;
    neon_chain<type, vectors, Start::sum>(chain);
  }
}

template <>
inline void eight_dots<Neon, Type::f32>(const Dots& t) {
  neon_dots<Type::f32, 1>(t);
}
template <>
inline void eight_dots<Neon, Type::f16>(const Dots& t) {
  neon_dots<Type::f16, 1>(t);
}
template <>
inline void eight_dots<Neon, Type::bf16>(const Dots& t) {
  neon_dots<Type::bf16, 1>(t);
}
template <>
inline void eight_dots_twice<Neon, Type::f32>(Dots t) {
  neon_dots<Type::f32, 2>(t);
}
template <>
inline void eight_dots_twice<Neon, Type::f16>(Dots t) {
  neon_dots<Type::f16, 2>(t);
}
template <>
inline void eight_dots_twice<Neon, Type::bf16>(Dots t) {
  neon_dots<Type::bf16, 2>(t);
}

}  // namespace heed::cpu::HEED_THIS_TARGET

// clang-format off: a line of assembly is a line here.

#undef HEED_LANE
#undef HEED_LOW_LANE
#undef HEED_LANE_TWICE
#undef HEED_KEYS_f32
#undef HEED_KEYS_16
#undef HEED_WIDEN_bf16
#undef HEED_WIDEN_f16
#undef HEED_LOW_bf16
#undef HEED_HIGH_bf16
#undef HEED_LOW_f16
#undef HEED_HIGH_f16
#undef HEED_ROWS
#undef HEED_ROWS_OF
#undef HEED_ROWS_TWICE
#undef HEED_PREFETCH_ROWS
#undef HEED_STEP_4
#undef HEED_STEP_8
#undef HEED_STEP_TWICE
#undef HEED_ZERO_SUMS
#undef HEED_ZERO_SUMS_TWICE
#undef HEED_STORE_SUMS
#undef HEED_STORE_SUMS_TWICE
#undef HEED_DOTS
#undef HEED_EIGHT_DOTS
#undef HEED_EIGHT_DOTS_OF_HALVES
#undef HEED_EIGHT_DOTS_TWICE

// Rows times lines. To add values, dimensions lie on the lanes and v16+4r ... are row r; to score four rows,
// the rows lie on the lanes and v16+n is key n, so that nothing has to be transposed.
//
//   v0-v3    a line, as f32
//   v4       the factors of four rows
//   v5-v7    a line before it is widened, by zipping it with zeros: a bf16 becomes the high half of its f32,
//            an int8 the high byte of 2^24 times itself. Shifts would do the same, but on one pipe only.
//   v8       zero
//   v16-v31  the sums

#define HEED_CHANGED                                                                                         \
  "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v16", "v17", "v18", "v19", "v20",   \
  "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

// One row of sums: v16+4r ... from the four vectors of the line.
#define HEED_ROW(a, b, c, d, lane)                                                                           \
  "fmla v" #a ".4s, v0.4s, v4.s[" #lane "]\n" "fmla v" #b ".4s, v1.4s, v4.s[" #lane "]\n"                    \
  "fmla v" #c ".4s, v2.4s, v4.s[" #lane "]\n" "fmla v" #d ".4s, v3.4s, v4.s[" #lane "]\n"
#define HEED_ROWS_1 HEED_ROW(16, 17, 18, 19, 0)
#define HEED_ROWS_2 HEED_ROWS_1 HEED_ROW(20, 21, 22, 23, 1)
#define HEED_ROWS_3 HEED_ROWS_2 HEED_ROW(24, 25, 26, 27, 2)
#define HEED_ROWS_4 HEED_ROWS_3 HEED_ROW(28, 29, 30, 31, 3)

#define HEED_LINE_f32 "ldp q0, q1, [%[line]]\n ldp q2, q3, [%[line], #32]\n add %[line], %[line], #64\n"
#define HEED_LINE_bf16                                                                                       \
  "ldp q5, q6, [%[line]], #32\n"                                                                             \
  "zip1 v0.8h, v8.8h, v5.8h\n zip2 v1.8h, v8.8h, v5.8h\n zip1 v2.8h, v8.8h, v6.8h\n zip2 v3.8h, v8.8h, v6.8h\n"
#define HEED_LINE_f16                                                                                        \
  "ldp q5, q6, [%[line]], #32\n"                                                                             \
  "fcvtl v0.4s, v5.4h\n fcvtl2 v1.4s, v5.8h\n fcvtl v2.4s, v6.4h\n fcvtl2 v3.4s, v6.8h\n"
#define HEED_LINE_int8                                                                                       \
  "ldr q5, [%[line]], #16\n zip1 v6.16b, v8.16b, v5.16b\n zip2 v7.16b, v8.16b, v5.16b\n"                     \
  "zip1 v0.8h, v8.8h, v6.8h\n zip2 v1.8h, v8.8h, v6.8h\n zip1 v2.8h, v8.8h, v7.8h\n zip2 v3.8h, v8.8h, v7.8h\n" \
  "scvtf v0.4s, v0.4s, #24\n scvtf v1.4s, v1.4s, #24\n scvtf v2.4s, v2.4s, #24\n scvtf v3.4s, v3.4s, #24\n"

#define HEED_SUMS(verb)                                                                                      \
  #verb " q16, q17, [%[sum0]]\n" #verb " q18, q19, [%[sum0], #32]\n"                                         \
  #verb " q20, q21, [%[sum1]]\n" #verb " q22, q23, [%[sum1], #32]\n"                                         \
  #verb " q24, q25, [%[sum2]]\n" #verb " q26, q27, [%[sum2], #32]\n"                                         \
  #verb " q28, q29, [%[sum3]]\n" #verb " q30, q31, [%[sum3], #32]\n"

#define HEED_ADD_LINES(line_of_type, rows)                                                                   \
  asm volatile(HEED_SUMS(ldp) "movi v8.4s, #0\n"                                                             \
               "1:\n"                                                                                        \
               "ldr q4, [%[factors]]\n add %[factors], %[factors], %[stride]\n"                              \
               "prfm pldl1keep, [%[next]]\n add %[next], %[next], %[bytes]\n"                                \
               line_of_type rows                                                                             \
               "subs %[count], %[count], #1\n"                                                               \
               "b.ne 1b\n" HEED_SUMS(stp)                                                                    \
               : [factors] "+r"(factors), [line] "+r"(line), [count] "+r"(count), [next] "+r"(next)          \
               : [sum0] "r"(t.sum), [sum1] "r"(t.sum + t.sum_stride), [sum2] "r"(t.sum + 2 * t.sum_stride),  \
                 [sum3] "r"(t.sum + 3 * t.sum_stride), [stride] "r"(t.stride * 4),                           \
                 [bytes] "i"(line_elements * bytes_of_type<type>)                                            \
               : HEED_CHANGED)

// Whole tiles of four rows, sixteen lines written out: four cycles a key less than a loop (Neoverse-N1, 128
// dimensions).
#define HEED_ADD_BLOCKS(line_of_type)                                                                        \
  asm volatile("movi v8.4s, #0\n"                                                                            \
               "1:\n" HEED_SUMS(ldp) "mov %[factor], %[factors]\n"                                           \
               ".rept 16\n"                                                                                  \
               "ldr q4, [%[factor]]\n add %[factor], %[factor], %[stride]\n"                                 \
               "prfm pldl1keep, [%[next]]\n add %[next], %[next], %[bytes]\n"                                \
               line_of_type HEED_ROWS_4                                                                      \
               ".endr\n" HEED_SUMS(stp)                                                                      \
               "add %[sum0], %[sum0], #64\n add %[sum1], %[sum1], #64\n"                                     \
               "add %[sum2], %[sum2], #64\n add %[sum3], %[sum3], #64\n"                                     \
               "subs %[blocks], %[blocks], #1\n"                                                             \
               "b.ne 1b\n"                                                                                   \
               : [factor] "=&r"(factor), [line] "+r"(line), [blocks] "+r"(blocks), [next] "+r"(next),        \
                 [sum0] "+r"(sum[0]), [sum1] "+r"(sum[1]), [sum2] "+r"(sum[2]), [sum3] "+r"(sum[3])          \
               : [factors] "r"(t.factors), [stride] "r"(t.stride * 4),                                       \
                 [bytes] "i"(line_elements * bytes_of_type<type>)                                            \
               : HEED_CHANGED)

// The same for 16 bits, of which a line of memory has two lines: one is asked for with every second of them.
#define HEED_FACTORS "ld1 {v4.4s}, [%[factor]], %[stride]\n"
#define HEED_PREFETCH "prfm pldl1keep, [%[next]]\n add %[next], %[next], #64\n"
#define HEED_ADD_HALVES(line_of_type)                                                                        \
  asm volatile("movi v8.4s, #0\n"                                                                            \
               "1:\n" HEED_SUMS(ldp) "mov %[factor], %[factors]\n"                                           \
               ".rept 8\n"                                                                                   \
               HEED_FACTORS HEED_PREFETCH line_of_type HEED_ROWS_4                                           \
               HEED_FACTORS line_of_type HEED_ROWS_4                                                         \
               ".endr\n" HEED_SUMS(stp)                                                                      \
               "add %[sum0], %[sum0], #64\n add %[sum1], %[sum1], #64\n"                                     \
               "add %[sum2], %[sum2], #64\n add %[sum3], %[sum3], #64\n"                                     \
               "subs %[blocks], %[blocks], #1\n"                                                             \
               "b.ne 1b\n"                                                                                   \
               : [factor] "=&r"(factor), [line] "+r"(line), [blocks] "+r"(blocks), [next] "+r"(next),        \
                 [sum0] "+r"(sum[0]), [sum1] "+r"(sum[1]), [sum2] "+r"(sum[2]), [sum3] "+r"(sum[3])          \
               : [factors] "r"(t.factors), [stride] "r"(t.stride * 4)                                        \
               : HEED_CHANGED)

// Four keys of the line, each times the four rows.
#define HEED_KEYS(a, b, c, d, line)                                                                          \
  "fmla v" #a ".4s, v4.4s, v" #line ".s[0]\n" "fmla v" #b ".4s, v4.4s, v" #line ".s[1]\n"                    \
  "fmla v" #c ".4s, v4.4s, v" #line ".s[2]\n" "fmla v" #d ".4s, v4.4s, v" #line ".s[3]\n"
#define HEED_EACH_SUM(f)                                                                                     \
  f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23) f(24) f(25) f(26) f(27) f(28) f(29) f(30) f(31)
#define HEED_ZERO_SUM(r) "movi v" #r ".4s, #0\n"
#define HEED_STORE_SUM(r) "str q" #r ", [%[sum]]\n add %[sum], %[sum], %[sum_stride]\n"

#define HEED_SCORE_LINES(line_of_type)                                                                       \
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM) "movi v8.4s, #0\n"                                               \
               "1:\n"                                                                                        \
               "ldr q4, [%[factors]]\n add %[factors], %[factors], %[stride]\n"                              \
               "prfm pldl1keep, [%[next]]\n add %[next], %[next], %[bytes]\n"                                \
               line_of_type HEED_KEYS(16, 17, 18, 19, 0) HEED_KEYS(20, 21, 22, 23, 1)                        \
               HEED_KEYS(24, 25, 26, 27, 2) HEED_KEYS(28, 29, 30, 31, 3)                                     \
               "subs %[count], %[count], #1\n"                                                               \
               "b.ne 1b\n" HEED_EACH_SUM(HEED_STORE_SUM)                                                     \
               : [factors] "+r"(factors), [line] "+r"(line), [count] "+r"(count), [next] "+r"(next), [sum] "+r"(sum) \
               : [stride] "r"(t.stride * 4), [sum_stride] "r"(t.sum_stride * 4),                             \
                 [bytes] "i"(line_elements * bytes_of_type<type>)                                            \
               : HEED_CHANGED)

#define HEED_SCORE_LINE(line_of_type)                                                                        \
  HEED_FACTORS line_of_type HEED_KEYS(16, 17, 18, 19, 0) HEED_KEYS(20, 21, 22, 23, 1)                        \
  HEED_KEYS(24, 25, 26, 27, 2) HEED_KEYS(28, 29, 30, 31, 3)
#define HEED_SCORE_HALVES(line_of_type)                                                                      \
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM) "movi v8.4s, #0\n"                                               \
               "subs %[count], %[count], #2\n"                                                               \
               "b.lt 2f\n"                                                                                   \
               "1:\n" HEED_PREFETCH HEED_SCORE_LINE(line_of_type) HEED_SCORE_LINE(line_of_type)              \
               "subs %[count], %[count], #2\n"                                                               \
               "b.ge 1b\n"                                                                                   \
               "2: tbz %[count], #0, 3f\n" HEED_SCORE_LINE(line_of_type)                                     \
               "3:\n" HEED_EACH_SUM(HEED_STORE_SUM)                                                          \
               : [factor] "+r"(factors), [line] "+r"(line), [count] "+r"(count), [next] "+r"(next), [sum] "+r"(sum) \
               : [stride] "r"(t.stride * 4), [sum_stride] "r"(t.sum_stride * 4)                              \
               : HEED_CHANGED)

#define HEED_ADD_LINES_OF(type)                                                                              \
  if constexpr (rows == 1) HEED_ADD_LINES(HEED_LINE_##type, HEED_ROWS_1);                                    \
  if constexpr (rows == 2) HEED_ADD_LINES(HEED_LINE_##type, HEED_ROWS_2);                                    \
  if constexpr (rows == 3) HEED_ADD_LINES(HEED_LINE_##type, HEED_ROWS_3);                                    \
  if constexpr (rows == 4) HEED_ADD_LINES(HEED_LINE_##type, HEED_ROWS_4)

#define HEED_SPECIALISE(type, rows)                                                                          \
  template <>                                                                                                \
  inline void add_lines<Neon, Type::type, rows>(const Lines& t) {                                            \
    neon_add_lines<Type::type, rows>(t);                                                                     \
  }
#define HEED_SPECIALISE_ROWS(type)                                                                           \
  HEED_SPECIALISE(type, 1) HEED_SPECIALISE(type, 2) HEED_SPECIALISE(type, 3) HEED_SPECIALISE(type, 4)        \
  template <>                                                                                                \
  inline void score_lines<Neon, Type::type, 4>(const Lines& t) {                                             \
    neon_score_lines<Type::type>(t);                                                                         \
  }                                                                                                          \
  template <>                                                                                                \
  inline void add_blocks<Neon, Type::type, 4>(Lines t, std::int64_t blocks) {                                \
    neon_add_blocks<Type::type>(t, blocks);                                                                  \
  }

// clang-format on

namespace heed::cpu::HEED_THIS_TARGET {

template <Type type, int rows>
static inline void neon_add_lines(const Lines& t) {
  const float* factors = t.factors;
  const void *line = t.lines, *next = t.next;
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
  if (t.count < line_elements)
    return add_one_by_one<Neon, type, 4>(t, blocks);  // the last tile of a sequence
  const void *line = t.lines, *next = t.next;
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
  const void *line = t.lines, *next = t.next;
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

#undef HEED_CHANGED
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
#undef HEED_PREFETCH
#undef HEED_SPECIALISE
#undef HEED_SPECIALISE_ROWS
