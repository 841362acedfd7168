// SPDX-License-Identifier: Apache-2.0
// The 12 x 8 micro-kernel for AArch64 in assembly: g++ 12 spills its 24 accumulators when it is written in
// intrinsics (46 % of peak against 79 %, Neoverse-V1). Loads run one step ahead of the products; nothing is
// read beyond the operands. Tiles of b follow each other, and what follows is asked for 16 steps ahead, which
// the core itself does not do across pages: a projection of 1536 inputs takes 1 % less, as does the backward
// pass of grouped heads (Neoverse-N1, November 2026).
//
//   v8 ... v31   the sums: column n of vector v is v(8 + 3n + v)
//   v0-v2, v5-v7 twelve rows of a, for even and odd steps
//   v3, v4       eight columns of b
#pragma once
#include <cstdint>

#include "cpu/tile/product.hpp"
#include "cpu/isa/neon.hpp"
#include "cpu/isa/vector.hpp"

// clang-format off: a line of assembly is a line here.

#define HEED_COLUMN(s0, s1, s2, a0, a1, a2, b, lane) \
  "fmla v" #s0 ".4s, v" #a0 ".4s, v" #b ".s[" #lane  \
  "]\n"                                              \
  "fmla v" #s1 ".4s, v" #a1 ".4s, v" #b ".s[" #lane  \
  "]\n"                                              \
  "fmla v" #s2 ".4s, v" #a2 ".4s, v" #b ".s[" #lane "]\n"

// One step of the summed index on rows a0-a2, with the next step's loads spread between.
#define HEED_STEP(a0, a1, a2, next_a0, next_a1, next_a2, next_b0, next_b1)                            \
  HEED_COLUMN(8, 9, 10, a0, a1, a2, 3, 0)                                                             \
  next_a0 HEED_COLUMN(11, 12, 13, a0, a1, a2, 3, 1) next_a1 HEED_COLUMN(14, 15, 16, a0, a1, a2, 3, 2) \
      HEED_COLUMN(17, 18, 19, a0, a1, a2, 3, 3) next_b0 HEED_COLUMN(20, 21, 22, a0, a1, a2, 4, 0)     \
          next_a2 HEED_COLUMN(23, 24, 25, a0, a1, a2, 4, 1) HEED_COLUMN(26, 27, 28, a0, a1, a2, 4, 2) \
              HEED_COLUMN(29, 30, 31, a0, a1, a2, 4, 3) next_b1

#define HEED_LOAD(q, from) "ldr q" #q ", [%[" #from "]], #16\n"
#define HEED_EVEN \
  HEED_STEP(0, 1, 2, HEED_LOAD(5, a), HEED_LOAD(6, a), HEED_LOAD(7, a), HEED_LOAD(3, b), HEED_LOAD(4, b))
#define HEED_ODD \
  HEED_STEP(5, 6, 7, HEED_LOAD(0, a), HEED_LOAD(1, a), HEED_LOAD(2, a), HEED_LOAD(3, b), HEED_LOAD(4, b))
// The last step; a column's sums leave while the next ones are multiplied.
// fault: tail-of-the-assembly
#define HEED_LAST(leave)                                                                                \
  HEED_COLUMN(8, 9, 10, 5, 6, 7, 3, 0)                                                                  \
  HEED_COLUMN(11, 12, 13, 5, 6, 7, 3, 1) leave(8, 0) leave(9, 16) leave(10, 32)                         \
  HEED_COLUMN(14, 15, 16, 5, 6, 7, 3, 2) leave(11, 48) leave(12, 64) leave(13, 80)                      \
  HEED_COLUMN(17, 18, 19, 5, 6, 7, 3, 3) leave(14, 96) leave(15, 112) leave(16, 128)                    \
  HEED_COLUMN(20, 21, 22, 5, 6, 7, 4, 0) leave(17, 144) leave(18, 160) leave(19, 176)                   \
  HEED_COLUMN(23, 24, 25, 5, 6, 7, 4, 1) leave(20, 192) leave(21, 208) leave(22, 224)                   \
  HEED_COLUMN(26, 27, 28, 5, 6, 7, 4, 2) leave(23, 240) leave(24, 256) leave(25, 272)                   \
  HEED_COLUMN(29, 30, 31, 5, 6, 7, 4, 3) leave(26, 288) leave(27, 304) leave(28, 320)                   \
  leave(29, 336) leave(30, 352) leave(31, 368)

#define HEED_EACH_SUM(f)                                                                                 \
  f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15) f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23) f(24)    \
      f(25) f(26) f(27) f(28) f(29) f(30) f(31)
#define HEED_ZERO_SUM(r) "movi v" #r ".4s, #0\n"
// Of a sum register and its place in c.
#define HEED_STORE_SUM(r, place) "str q" #r ", [%[c], #" #place "]\n"

#define HEED_ADD_SUM(r, place) "ldr q0, [%[c], #" #place "]\n fadd v" #r ".4s, v" #r ".4s, v0.4s\n" HEED_STORE_SUM(r, place)

#define HEED_TILE_PRODUCT(leave) \
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM)                                                                        \
               HEED_LOAD(0, a) HEED_LOAD(1, a) HEED_LOAD(2, a) HEED_LOAD(3, b) HEED_LOAD(4, b)                     \
               "subs %[n], %[n], #2\n"                                                                             \
               "b.eq 2f\n"                                                                                         \
               "1:\n"                                                                                              \
               "prfm pldl1keep, [%[b], #512]\n" HEED_EVEN HEED_ODD                                                 \
               "subs %[n], %[n], #2\n"                                                                             \
               "b.ne 1b\n"                                                                                         \
               "2:\n" HEED_EVEN HEED_LAST(leave)                                                                   \
               : [a] "+r"(a), [b] "+r"(b), [n] "+r"(depth)                                                         \
               : [c] "r"(c)                                                                                        \
               : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",  \
                 "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", \
                 "v27", "v28", "v29", "v30", "v31")

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
