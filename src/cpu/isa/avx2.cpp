// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET avx2
#include "cpu/isa/avx2.hpp"

#include "cpu/isa/table.hpp"
#include "cpu/isa/x86.hpp"

namespace heed::cpu {

extern const Target avx2_target;
constinit const Target avx2_target = avx2::make_target<avx2::Avx2>(
    "avx2", "AVX2, FMA and F16C", [] { return __builtin_cpu_supports("avx2") && has_fma_and_f16c(); });

}  // namespace heed::cpu
