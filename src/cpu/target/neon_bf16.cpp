// SPDX-License-Identifier: Apache-2.0
#include <sys/auxv.h>

#include "cpu/algorithm/operands_bfmmla.hpp"
#include "cpu/target/table.hpp"

namespace heed::cpu {
namespace {

// Linux's ABI; named here because older headers lack it.
constexpr unsigned long hwcap2_bf16 = 1ul << 14;

bool has_bf16() { return (getauxval(AT_HWCAP2) & hwcap2_bf16) != 0; }

}  // namespace

extern const Target neon_bf16_target;
constinit const Target neon_bf16_target = make_bf16_target<PackedBf16<NeonBf16<3>>, PackedBf16<NeonBf16<1>>>(
    "neon_bf16", "Arm's BF16 extension", has_bf16);

}  // namespace heed::cpu
