// SPDX-License-Identifier: Apache-2.0
// The verbs of src/cuda/tile/number.cuh on a CPU.
#pragma once
#include "cuda/tile/block.cuh"
#include "heed/half.hpp"

namespace heed::cuda {

inline float from_bf16(std::uint16_t bits) { return to_float(bf16{bits}); }
inline float from_f16(std::uint16_t bits) { return to_float(f16{bits}); }
inline std::uint16_t to_bf16(float x) { return from_float<bf16>(x).bits; }
inline std::uint16_t to_f16(float x) { return from_float<f16>(x).bits; }

}  // namespace heed::cuda
