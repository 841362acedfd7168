// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd/neon.hpp"

#include "cpu/simd/neon_dots.hpp"
#include "cpu/simd/neon_product.hpp"
#include "cpu/simd/neon_weights.hpp"
#include "simd/operations.hpp"

namespace heed::simd {

extern const Operations neon_operations;
constinit const Operations neon_operations = make_operations<cpu::Neon>("neon");

}  // namespace heed::simd
