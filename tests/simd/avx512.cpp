// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd/avx512.hpp"

#include "simd/operations.hpp"

namespace heed::simd {

extern const Operations avx512_operations;
constinit const Operations avx512_operations = make_operations<cpu::Avx512>("avx512");

}  // namespace heed::simd
