// SPDX-License-Identifier: Apache-2.0
// Elements in 16 bits: widening is exact, narrowing rounds once, to nearest even.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/tile/block.cuh"

namespace heed::cuda {

HEED_DEVICE float from_bf16(std::uint16_t bits) { return __uint_as_float(std::uint32_t{bits} << 16); }
HEED_DEVICE float from_f16(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
HEED_DEVICE std::uint16_t to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
HEED_DEVICE std::uint16_t to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }

}  // namespace heed::cuda
