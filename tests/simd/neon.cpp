// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET neon
#include "cpu/isa/neon.hpp"

#include "cpu/isa/neon_decode.hpp"
#include "simd/make_operations.hpp"

namespace heed::simd {

extern const Operations neon_operations;
constinit const Operations neon_operations = make_operations<cpu::neon::Neon>("neon");

}  // namespace heed::simd
