// SPDX-License-Identifier: Apache-2.0
// line_product() of 4 vectors and 6 columns for AVX-512 in assembly. The lines of sums were last written by
// another core: they are asked for, to be written, when the products begin, 1200 cycles before they are
// wanted. Two columns of six are broadcast by the multiply-adds, as in avx512_product.hpp. Both together take
// 2 to 4 % off the sums over rows of a backward pass on 16 threads of a Xeon, the first alone half of that,
// the second nothing (November 2026).
//
//   zmm8 ... zmm31  the sums: column k of vector v is zmm(8 + 4k + v)
//   zmm0 - zmm3     64 dimensions of a row
//   zmm4 - zmm7     columns of pairs, by transposes
#pragma once
#include <cstdint>

#include "cpu/tile/product.hpp"
#include "cpu/isa/avx512.hpp"
#include "cpu/isa/vector.hpp"

#if defined(__x86_64__)  // and not where tests emulate it

#define HEED_COLUMN(s0, s1, s2, s3, b, place)  \
  "vbroadcastss " place "(%[b]), %%zmm" #b     \
  "\n"                                         \
  "vfmadd231ps %%zmm0, %%zmm" #b ", %%zmm" #s0 \
  "\n"                                         \
  "vfmadd231ps %%zmm1, %%zmm" #b ", %%zmm" #s1 \
  "\n"                                         \
  "vfmadd231ps %%zmm2, %%zmm" #b ", %%zmm" #s2 \
  "\n"                                         \
  "vfmadd231ps %%zmm3, %%zmm" #b ", %%zmm" #s3 "\n"

#define HEED_COLUMN_IN_PLACE(s0, s1, s2, s3, place)         \
  "vfmadd231ps " place "(%[b])%{1to16%}, %%zmm0, %%zmm" #s0 \
  "\n"                                                      \
  "vfmadd231ps " place "(%[b])%{1to16%}, %%zmm1, %%zmm" #s1 \
  "\n"                                                      \
  "vfmadd231ps " place "(%[b])%{1to16%}, %%zmm2, %%zmm" #s2 \
  "\n"                                                      \
  "vfmadd231ps " place "(%[b])%{1to16%}, %%zmm3, %%zmm" #s3 "\n"

// One row, so many bytes beyond a and b; columns are 48 floats apart.
#define HEED_ROW(a, b)                                                                        \
  "vmovups " a                                                                                \
  "(%[a]), %%zmm0\n"                                                                          \
  "vmovups 64+" a                                                                             \
  "(%[a]), %%zmm1\n"                                                                          \
  "vmovups 128+" a                                                                            \
  "(%[a]), %%zmm2\n"                                                                          \
  "vmovups 192+" a "(%[a]), %%zmm3\n" HEED_COLUMN(8, 9, 10, 11, 4, b)                         \
      HEED_COLUMN(12, 13, 14, 15, 5, "192+" b) HEED_COLUMN_IN_PLACE(16, 17, 18, 19, "384+" b) \
          HEED_COLUMN(20, 21, 22, 23, 6, "576+" b) HEED_COLUMN(24, 25, 26, 27, 7, "768+" b)   \
              HEED_COLUMN_IN_PLACE(28, 29, 30, 31, "960+" b)

// Applies a macro to the sums of every column.
#define HEED_EACH_COLUMN(f) \
  f(8, 9, 10, 11) f(12, 13, 14, 15) f(16, 17, 18, 19) f(20, 21, 22, 23) f(24, 25, 26, 27) f(28, 29, 30, 31)
#define HEED_ZERO(r) "vpxorq %%zmm" #r ", %%zmm" #r ", %%zmm" #r "\n"
#define HEED_BEGIN(s0, s1, s2, s3) \
  "prefetchw (%[ahead])\n"         \
  "prefetchw 64(%[ahead])\n"       \
  "prefetchw 128(%[ahead])\n"      \
  "prefetchw 192(%[ahead])\n"      \
  "add %[stride], %[ahead]\n" HEED_ZERO(s0) HEED_ZERO(s1) HEED_ZERO(s2) HEED_ZERO(s3)
#define HEED_ADD(r, place)                            \
  "vaddps " #place "(%[sums]), %%zmm" #r ", %%zmm" #r \
  "\n"                                                \
  "vmovups %%zmm" #r ", " #place "(%[sums])\n"
#define HEED_END(s0, s1, s2, s3) \
  HEED_ADD(s0, 0) HEED_ADD(s1, 64) HEED_ADD(s2, 128) HEED_ADD(s3, 192) "add %[stride], %[sums]\n"

namespace heed::cpu::HEED_THIS_TARGET {

template <>
[[gnu::always_inline]] inline void line_product<Avx512, 4, 6>(const LinePanel* panel, std::int64_t panels,
                                                              float* sums, std::int64_t stride) {
  static_assert(Tile<Avx512>::rows == 48 && sizeof(LinePanel) == 24);
  const float *a, *b, *ahead = sums;
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
                 [sums] "+r"(sums), [ahead] "+r"(ahead)
               : [stride] "r"(stride * static_cast<std::int64_t>(sizeof(float)))
               : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                 "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19",
                 "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29",
                 "xmm30", "xmm31");
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

#endif
