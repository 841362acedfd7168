// SPDX-License-Identifier: Apache-2.0
// The 48 x 8 micro-kernel for AVX-512 in assembly: where a second chain follows the first, g++ 12 keeps the
// 24 sums of its loop in memory.
//
//   zmm8 ... zmm31  the sums: column n of vector v is zmm(8 + 3n + v)
//   zmm0 - zmm2     48 rows of a
//   zmm3 - zmm6     columns of b, by turns
#pragma once
#include <cstdint>

#include "cpu/algorithm/product.hpp"
#include "cpu/simd/avx512.hpp"
#include "cpu/simd/vector.hpp"

#define HEED_COLUMN(s0, s1, s2, b, place)      \
  "vbroadcastss " #place "(%[b]), %%zmm" #b    \
  "\n"                                         \
  "vfmadd231ps %%zmm0, %%zmm" #b ", %%zmm" #s0 \
  "\n"                                         \
  "vfmadd231ps %%zmm1, %%zmm" #b ", %%zmm" #s1 \
  "\n"                                         \
  "vfmadd231ps %%zmm2, %%zmm" #b ", %%zmm" #s2 "\n"

// One step of the summed index.
#define HEED_STEP \
  "vmovups (%[a]), %%zmm0\n"                                                           \
  "vmovups 64(%[a]), %%zmm1\n"                                                         \
  "vmovups 128(%[a]), %%zmm2\n" HEED_COLUMN(8, 9, 10, 3, 0) HEED_COLUMN(11, 12, 13, 4, 4)  \
      HEED_COLUMN(14, 15, 16, 5, 8) HEED_COLUMN(17, 18, 19, 6, 12) HEED_COLUMN(20, 21, 22, 3, 16) \
          HEED_COLUMN(23, 24, 25, 4, 20) HEED_COLUMN(26, 27, 28, 5, 24) HEED_COLUMN(29, 30, 31, 6, 28) \
  "add $192, %[a]\n"                                                                   \
  "add $32, %[b]\n"

// Applies a macro to every sum register and its place in c.
#define HEED_EACH_SUM(f)                                                                                    \
  f(8, 0) f(9, 64) f(10, 128) f(11, 192) f(12, 256) f(13, 320) f(14, 384) f(15, 448) f(16, 512) f(17, 576)  \
      f(18, 640) f(19, 704) f(20, 768) f(21, 832) f(22, 896) f(23, 960) f(24, 1024) f(25, 1088) f(26, 1152) \
          f(27, 1216) f(28, 1280) f(29, 1344) f(30, 1408) f(31, 1472)
#define HEED_ZERO_SUM(r, place) "vpxorq %%zmm" #r ", %%zmm" #r ", %%zmm" #r "\n"
#define HEED_STORE_SUM(r, place) "vmovups %%zmm" #r ", " #place "(%[c])\n"
#define HEED_ADD_SUM(r, place) "vaddps " #place "(%[c]), %%zmm" #r ", %%zmm" #r "\n" HEED_STORE_SUM(r, place)

#define HEED_TILE_PRODUCT(last) \
  asm volatile(HEED_EACH_SUM(HEED_ZERO_SUM)                                                                        \
               ".p2align 5\n"                                                                                      \
               "1:\n" HEED_STEP HEED_STEP                                                                          \
               "sub $2, %[n]\n"                                                                                    \
               "jne 1b\n" HEED_EACH_SUM(last)                                                                      \
               : [a] "+r"(a), [b] "+r"(b), [n] "+r"(depth)                                                         \
               : [c] "r"(c)                                                                                        \
               : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm8", "xmm9", "xmm10",  \
                 "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",         \
                 "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31")

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

}  // namespace heed::cpu::HEED_THIS_TARGET

#undef HEED_COLUMN
#undef HEED_STEP
#undef HEED_EACH_SUM
#undef HEED_ZERO_SUM
#undef HEED_STORE_SUM
#undef HEED_ADD_SUM
#undef HEED_TILE_PRODUCT
