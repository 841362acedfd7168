// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa/target.hpp"

namespace heed::cpu {

extern const Target scalar_target;
#if defined(__aarch64__)
extern const Target neon_bf16_target, neon_target;
#elif defined(__x86_64__)
extern const Target amx_target, avx2_target, avx512_target;
#elif defined(__wasm__)
extern const Target wasm_target;
#endif

std::span<const Target* const> targets() {
  static constexpr const Target* all[] = {
#if defined(__aarch64__)
      &neon_bf16_target,
      &neon_target,
#elif defined(__x86_64__)
      &amx_target,
      &avx512_target,
      &avx2_target,
#elif defined(__wasm__)
      &wasm_target,
#endif
      &scalar_target,
  };
  return all;
}

}  // namespace heed::cpu
