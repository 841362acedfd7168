// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET neon
#include "cpu/isa/neon.hpp"

#include "cpu/isa/neon_decode.hpp"
#include "cpu/isa/table.hpp"

namespace heed::cpu {

extern const Target neon_target;
constinit const Target neon_target = neon::make_target<neon::Neon>("neon", "AArch64", [] { return true; });

}  // namespace heed::cpu
