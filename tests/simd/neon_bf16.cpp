// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET neon_bf16
#include "cpu/tile/operands_bfmmla.hpp"
#include "simd/make_bf16_operands.hpp"

namespace heed::simd {

extern const Bf16Operands bfmmla_panels_of_12, bfmmla_panels_of_4;
constinit const Bf16Operands bfmmla_panels_of_12 =
    make_bf16_operands<cpu::neon_bf16::PackedBf16<cpu::neon_bf16::NeonBf16<3>>>("neon_bf16");
constinit const Bf16Operands bfmmla_panels_of_4 =
    make_bf16_operands<cpu::neon_bf16::PackedBf16<cpu::neon_bf16::NeonBf16<1>>>("neon_bf16");

}  // namespace heed::simd
