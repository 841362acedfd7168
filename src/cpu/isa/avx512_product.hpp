// SPDX-License-Identifier: Apache-2.0
// The 48 x 8 micro-kernel for AVX-512 in assembly: where a second chain follows the first, g++ 12 keeps the
// 24 sums of its loop in memory. It has few instructions: a core begins six in a cycle, three for each of two
// busy threads, and two of these are the multiply-adds. So two columns of eight are broadcast by the
// multiply-adds themselves, which takes more loads instead. What follows in b is asked for 16 steps ahead.
// Both together take 2 to 3 % off the scores and dQ of a backward pass (Xeon, 8 and 16 threads, November
// 2026).
//
//   zmm8 ... zmm31  the sums: column n of vector v is zmm(8 + 3n + v)
//   zmm0 - zmm2     48 rows of a
//   zmm3 - zmm5     columns of b, by transposes
#pragma once
#include <cstdint>

#include "cpu/tile/product.hpp"
#include "cpu/tile/reach.hpp"
#include "cpu/isa/avx512.hpp"
#include "cpu/isa/vector.hpp"

#if defined(__x86_64__)  // and not where tests emulate it

#define HEED_COLUMN(s0, s1, s2, b, place)      \
  "vbroadcastss " #place "(%[b]), %%zmm" #b    \
  "\n"                                         \
  "vfmadd231ps %%zmm0, %%zmm" #b ", %%zmm" #s0 \
  "\n"                                         \
  "vfmadd231ps %%zmm1, %%zmm" #b ", %%zmm" #s1 \
  "\n"                                         \
  "vfmadd231ps %%zmm2, %%zmm" #b ", %%zmm" #s2 "\n"

#define HEED_COLUMN_IN_PLACE(s0, s1, s2, place)              \
  "vfmadd231ps " #place "(%[b])%{1to16%}, %%zmm0, %%zmm" #s0 \
  "\n"                                                       \
  "vfmadd231ps " #place "(%[b])%{1to16%}, %%zmm1, %%zmm" #s1 \
  "\n"                                                       \
  "vfmadd231ps " #place "(%[b])%{1to16%}, %%zmm2, %%zmm" #s2 "\n"

// One step of the summed index, from a and b on, so many bytes beyond.
#define HEED_STEP(a0, a1, a2, b0, b1, b2, b3, b4, b5, b6, b7)                                            \
  "vmovups " #a0                                                                                         \
  "(%[a]), %%zmm0\n"                                                                                     \
  "vmovups " #a1                                                                                         \
  "(%[a]), %%zmm1\n"                                                                                     \
  "vmovups " #a2 "(%[a]), %%zmm2\n" HEED_COLUMN(8, 9, 10, 3, b0) HEED_COLUMN(11, 12, 13, 4, b1)          \
      HEED_COLUMN(14, 15, 16, 5, b2) HEED_COLUMN_IN_PLACE(17, 18, 19, b3) HEED_COLUMN(20, 21, 22, 3, b4) \
          HEED_COLUMN(23, 24, 25, 4, b5) HEED_COLUMN(26, 27, 28, 5, b6) HEED_COLUMN_IN_PLACE(29, 30, 31, b7)
#define HEED_EVEN HEED_STEP(0, 64, 128, 0, 4, 8, 12, 16, 20, 24, 28)
#define HEED_ODD HEED_STEP(192, 256, 320, 32, 36, 40, 44, 48, 52, 56, 60)

// The same for the last two vectors of a panel, and for the last alone.
#define HEED_COLUMN_OF_TWO(s1, s2, b, place)   \
  "vbroadcastss " #place "(%[b]), %%zmm" #b    \
  "\n"                                         \
  "vfmadd231ps %%zmm1, %%zmm" #b ", %%zmm" #s1 \
  "\n"                                         \
  "vfmadd231ps %%zmm2, %%zmm" #b ", %%zmm" #s2 "\n"
#define HEED_COLUMN_OF_ONE(s2, place) "vfmadd231ps " #place "(%[b])%{1to16%}, %%zmm2, %%zmm" #s2 "\n"
#define HEED_STEP_OF_TWO                                                                                   \
  "vmovups 64(%[a]), %%zmm1\n"                                                                             \
  "vmovups 128(%[a]), %%zmm2\n" HEED_COLUMN_OF_TWO(9, 10, 3, 0) HEED_COLUMN_OF_TWO(12, 13, 4, 4)           \
      HEED_COLUMN_OF_TWO(15, 16, 5, 8) HEED_COLUMN_OF_TWO(18, 19, 3, 12) HEED_COLUMN_OF_TWO(21, 22, 4, 16) \
          HEED_COLUMN_OF_TWO(24, 25, 5, 20) HEED_COLUMN_OF_TWO(27, 28, 3, 24)                              \
              HEED_COLUMN_OF_TWO(30, 31, 4, 28)
#define HEED_STEP_OF_ONE                                                              \
  "vmovups 128(%[a]), %%zmm2\n" HEED_COLUMN_OF_ONE(10, 0) HEED_COLUMN_OF_ONE(13, 4)   \
      HEED_COLUMN_OF_ONE(16, 8) HEED_COLUMN_OF_ONE(19, 12) HEED_COLUMN_OF_ONE(22, 16) \
          HEED_COLUMN_OF_ONE(25, 20) HEED_COLUMN_OF_ONE(28, 24) HEED_COLUMN_OF_ONE(31, 28)

// Applies a macro to every sum register and its place in c.
#define HEED_EACH_SUM(f)                                                                                    \
  f(8, 0) f(9, 64) f(10, 128) f(11, 192) f(12, 256) f(13, 320) f(14, 384) f(15, 448) f(16, 512) f(17, 576)  \
      f(18, 640) f(19, 704) f(20, 768) f(21, 832) f(22, 896) f(23, 960) f(24, 1024) f(25, 1088) f(26, 1152) \
          f(27, 1216) f(28, 1280) f(29, 1344) f(30, 1408) f(31, 1472)
#define HEED_ZERO_SUM(r, place) "vpxorq %%zmm" #r ", %%zmm" #r ", %%zmm" #r "\n"
#define HEED_STORE_SUM(r, place) "vmovups %%zmm" #r ", " #place "(%[c])\n"
#define HEED_ADD_SUM(r, place) "vaddps " #place "(%[c]), %%zmm" #r ", %%zmm" #r "\n" HEED_STORE_SUM(r, place)

// What a product changes besides its operands.
#define HEED_CHANGED                                                                                         \
  "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23",     \
      "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"

#define HEED_TWO_STEPS "prefetcht0 512(%[b])\n" HEED_EVEN HEED_ODD "add $384, %[a]\nadd $64, %[b]\n"

#define HEED_TILE_PRODUCT(last) \
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM)                                       \
               ".p2align 5\n"                                                     \
               "1:\n" HEED_TWO_STEPS                                              \
               "sub $2, %[n]\n"                                                   \
               "jne 1b\n" HEED_EACH_SUM(last)                                     \
               : [a] "+r"(a), [b] "+r"(b), [n] "+r"(depth)                        \
               : [c] "r"(c)                                                       \
               : HEED_CHANGED)

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
               "add $192, %[a]\n"
               "add $32, %[b]\n"
               "sub $1, %[two]\n"
               "jne 3b\n"
               "4: test %[one], %[one]\n"
               "je 6f\n"
               "5:\n" HEED_STEP_OF_ONE
               "add $192, %[a]\n"
               "add $32, %[b]\n"
               "sub $1, %[one]\n"
               "jne 5b\n"
               "6:\n" HEED_EACH_SUM(HEED_ADD_SUM)
               : [a] "+r"(a), [b] "+r"(b), [three] "+r"(of_three), [two] "+r"(of_two), [one] "+r"(of_one)
               : [c] "r"(c)
               : HEED_CHANGED);
}

}  // namespace heed::cpu::HEED_THIS_TARGET

#undef HEED_COLUMN
#undef HEED_COLUMN_IN_PLACE
#undef HEED_STEP
#undef HEED_COLUMN_OF_TWO
#undef HEED_COLUMN_OF_ONE
#undef HEED_STEP_OF_TWO
#undef HEED_STEP_OF_ONE
#undef HEED_TWO_STEPS
#undef HEED_CHANGED
#undef HEED_EVEN
#undef HEED_ODD
#undef HEED_EACH_SUM
#undef HEED_ZERO_SUM
#undef HEED_STORE_SUM
#undef HEED_ADD_SUM
#undef HEED_TILE_PRODUCT

#endif
