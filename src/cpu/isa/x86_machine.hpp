// SPDX-License-Identifier: Apache-2.0
// What every x86 target beyond the scalar one is compiled for besides its own vectors.
#pragma once
#include <cpuid.h>

namespace heed::cpu {

// Asked once and remembered: every call of the library wants to know, and in a virtual machine CPUID is slow.
// clang 14 cannot be asked for f16c by name.
// That the system keeps the registers is in the answers for avx2 and avx512f.
static inline bool has_fma_and_f16c() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
  }();
  return has;
}

}  // namespace heed::cpu
