// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET avx2
#include "cpu/isa/avx2.hpp"

#include "simd/make_operations.hpp"

namespace heed::simd {

extern const Operations avx2_operations;
constinit const Operations avx2_operations = make_operations<cpu::avx2::Avx2>("avx2");

}  // namespace heed::simd
