// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd/avx2.hpp"

#include <cpuid.h>

#include "cpu/target/table.hpp"

namespace heed::cpu {
namespace {

// clang 14 cannot be asked for f16c by name. That the system keeps the registers is already in avx2's answer.
bool has_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
         (c & bit_F16C) != 0;
}

}  // namespace

extern const Target avx2_target;
constinit const Target avx2_target = make_target<Avx2>("avx2", "AVX2, FMA and F16C", has_avx2);

}  // namespace heed::cpu
