// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd/avx2.hpp"

#include "simd/operations.hpp"

namespace heed::simd {

extern const Operations avx2_operations;
constinit const Operations avx2_operations = make_operations<cpu::Avx2>("avx2");

}  // namespace heed::simd
