// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd/avx2.hpp"

#include "cpu/target/table.hpp"

namespace heed::cpu {

extern const Target avx2_target;
constinit const Target avx2_target = make_target<Avx2>("avx2", "AVX2, FMA and F16C", [] {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
});

}  // namespace heed::cpu
