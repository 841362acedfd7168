// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET avx512
#include "cpu/isa/avx512.hpp"

#include "cpu/isa/table.hpp"
#include "cpu/isa/x86.hpp"

namespace heed::cpu {

extern const Target avx512_target;
constinit const Target avx512_target =
    avx512::make_target<avx512::Avx512>("avx512", "AVX-512F and AVX-512BW", [] {
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && has_fma_and_f16c();
    });

}  // namespace heed::cpu
