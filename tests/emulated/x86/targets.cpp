// SPDX-License-Identifier: Apache-2.0
// The targets of an Arm machine, and behind them those of x86 that it emulates: only who asks for one of
// these by name has it.
#include "cpu/isa/target.hpp"

namespace heed::cpu {

extern const Target neon_bf16_target, neon_target, scalar_target, amx_target, avx512_target;

std::span<const Target* const> targets() {
  static constexpr const Target* all[] = {&neon_bf16_target, &neon_target, &scalar_target, &amx_target,
                                          &avx512_target};
  return all;
}

}  // namespace heed::cpu
