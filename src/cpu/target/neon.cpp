// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET neon
#include "cpu/simd/neon_dots.hpp"
#include "cpu/simd/neon_lines.hpp"
#include "cpu/simd/neon_product.hpp"
#include "cpu/simd/neon_weights.hpp"
#include "cpu/target/table.hpp"

namespace heed::cpu {

extern const Target neon_target;
constinit const Target neon_target = neon::make_target<neon::Neon>("neon", "AArch64", [] { return true; });

}  // namespace heed::cpu
