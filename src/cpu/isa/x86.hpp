// SPDX-License-Identifier: Apache-2.0
// What AVX2 and AVX-512 do alike: they transpose corners in SSE registers, prefetch into the second-level
// cache, and need FMA and F16C besides their own vectors.
#pragma once
#include <cpuid.h>
#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/vector.hpp"

namespace heed::cpu {

// Asked once and remembered: every call of the library wants to know, and in a virtual machine CPUID is slow.
// clang 14 cannot be asked for f16c by name. That the system saves the registers is in the answers for avx2
// and avx512f.
static inline bool has_fma_and_f16c() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
  }();
  return has;
}

}  // namespace heed::cpu

namespace heed::cpu::HEED_THIS_TARGET {

inline void prefetch_line(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// A 4 x 4 corner, transposed: to[d * width + r] = from[r][d].
inline void transpose_corner(const float* const from[4], float* to, std::int64_t width) {
  __m128 r0 = _mm_loadu_ps(from[0]), r1 = _mm_loadu_ps(from[1]), r2 = _mm_loadu_ps(from[2]),
         r3 = _mm_loadu_ps(from[3]);
  _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
  _mm_storeu_ps(to, r0);
  _mm_storeu_ps(to + width, r1);
  _mm_storeu_ps(to + 2 * width, r2);
  _mm_storeu_ps(to + 3 * width, r3);
}

}  // namespace heed::cpu::HEED_THIS_TARGET
