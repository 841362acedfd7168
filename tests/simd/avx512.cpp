// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET avx512
#include "cpu/isa/avx512.hpp"

#include "simd/make_operations.hpp"

namespace heed::simd {

extern const Operations avx512_operations;
constinit const Operations avx512_operations = make_operations<cpu::avx512::Avx512>("avx512");

}  // namespace heed::simd
