// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd/neon_dots.hpp"
#include "cpu/simd/neon_lines.hpp"
#include "cpu/simd/neon_product.hpp"
#include "cpu/simd/neon_weights.hpp"
#include "cpu/target/table.hpp"

namespace heed::cpu {

extern const Target neon_target;
constinit const Target neon_target = make_target<Neon>("neon", "AArch64", [] { return true; });

}  // namespace heed::cpu
