// SPDX-License-Identifier: Apache-2.0
#include "cpu/target/target.hpp"

namespace heed::cpu {

extern const Target scalar_target;
#if defined(__aarch64__)
extern const Target neon_target;
#endif

std::span<const Target* const> targets() {
  static constexpr const Target* all[] = {
#if defined(__aarch64__)
    &neon_target,
#endif
    &scalar_target,
  };
  return all;
}

}  // namespace heed::cpu
