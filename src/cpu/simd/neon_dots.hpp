// SPDX-License-Identifier: Apache-2.0
// Decode's eight dot products for AArch64 in assembly: eight key pointers and eight chains, which g++ 12 spills.
//
//   v0-v7    four dimensions of each key
//   v16-v19  four dimensions of the rows
//   v24-v31  the sums
#pragma once
#include "cpu/algorithm/dots.hpp"
#include "cpu/simd/neon.hpp"

#define HEED_LANE(x, lane)                                                                              \
  "fmla v24.4s, v" #x ".4s, v0.s[" #lane "]\n" "fmla v25.4s, v" #x ".4s, v1.s[" #lane "]\n"             \
  "fmla v26.4s, v" #x ".4s, v2.s[" #lane "]\n" "fmla v27.4s, v" #x ".4s, v3.s[" #lane "]\n"             \
  "fmla v28.4s, v" #x ".4s, v4.s[" #lane "]\n" "fmla v29.4s, v" #x ".4s, v5.s[" #lane "]\n"             \
  "fmla v30.4s, v" #x ".4s, v6.s[" #lane "]\n" "fmla v31.4s, v" #x ".4s, v7.s[" #lane "]\n"

namespace heed::cpu {

// An eighth of the depth at a time: while it passes, one of the eight upcoming rows is touched, two cache lines a step.
template <>
inline void eight_dots<Neon>(const Dots& t) {
  const float *k0 = t.k, *k1 = k0 + t.k_stride, *k2 = k1 + t.k_stride, *k3 = k2 + t.k_stride, *k4 = k3 + t.k_stride,
              *k5 = k4 + t.k_stride, *k6 = k5 + t.k_stride, *k7 = k6 + t.k_stride, *q = t.q;
  const bool touches = t.next.rows && t.depth % 32 == 0;
  const float* touched = touches ? t.next.rows : t.q;
  const std::int64_t line_pair = touches ? 128 : 0, steps = touches ? t.depth / 32 : t.depth / 4;
  const std::int64_t next_row = touches ? (t.next.stride - t.depth) * 4 : 0;
  std::int64_t parts = touches ? 8 : 1, left;
  float32x4_t sum[keys_per_dots];
  asm volatile(
      "movi v24.4s, #0\n movi v25.4s, #0\n movi v26.4s, #0\n movi v27.4s, #0\n"
      "movi v28.4s, #0\n movi v29.4s, #0\n movi v30.4s, #0\n movi v31.4s, #0\n"
      "0: mov %[left], %[steps]\n"
      "1:\n"
      "ldr q16, [%[q]]\n add %[q], %[q], %[step]\n ldr q17, [%[q]]\n add %[q], %[q], %[step]\n"
      "ldr q0, [%[k0]], #16\n ldr q1, [%[k1]], #16\n ldr q2, [%[k2]], #16\n ldr q3, [%[k3]], #16\n"
      "ldr q4, [%[k4]], #16\n ldr q5, [%[k5]], #16\n ldr q6, [%[k6]], #16\n ldr q7, [%[k7]], #16\n"
      HEED_LANE(16, 0)
      "ldr q18, [%[q]]\n add %[q], %[q], %[step]\n ldr q19, [%[q]]\n add %[q], %[q], %[step]\n"
      HEED_LANE(17, 1)
      "ldr wzr, [%[touched]]\n ldr wzr, [%[touched], #64]\n add %[touched], %[touched], %[line_pair]\n"
      HEED_LANE(18, 2) HEED_LANE(19, 3)
      "subs %[left], %[left], #1\n"
      "b.ne 1b\n"
      "add %[touched], %[touched], %[next_row]\n"
      "subs %[parts], %[parts], #1\n"
      "b.ne 0b\n"
      "stp q24, q25, [%[sum]]\n stp q26, q27, [%[sum], #32]\n"
      "stp q28, q29, [%[sum], #64]\n stp q30, q31, [%[sum], #96]\n"
      : [q] "+r"(q), [left] "=&r"(left), [parts] "+r"(parts), [touched] "+r"(touched), [k0] "+r"(k0), [k1] "+r"(k1),
        [k2] "+r"(k2), [k3] "+r"(k3), [k4] "+r"(k4), [k5] "+r"(k5), [k6] "+r"(k6), [k7] "+r"(k7)
      : [step] "r"(t.q_stride * 4), [sum] "r"(sum), [steps] "r"(steps), [line_pair] "r"(line_pair),
        [next_row] "r"(next_row)
      : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v24", "v25", "v26",
        "v27", "v28", "v29", "v30", "v31");
  for (int n = 0; n < keys_per_dots; ++n) vst1q_f32(t.s + n * t.s_stride, sum[n]);
}

}  // namespace heed::cpu

#undef HEED_LANE
