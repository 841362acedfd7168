// SPDX-License-Identifier: Apache-2.0
// An instruction set without a fused multiply-add is no Vector, and that is what its author is told.
#define HEED_THIS_TARGET incomplete
#include "cpu/isa/scalar.hpp"
#include "cpu/isa/table.hpp"

namespace heed::cpu {

struct Incomplete : incomplete::Scalar {
#ifndef FIXED
  static F fma(F a, F b, F c) = delete;
#endif
};

constexpr Target incomplete_target =
    incomplete::make_target<Incomplete>("incomplete", "nothing", [] { return true; });
static_assert(!incomplete_target.only_bf16);

}  // namespace heed::cpu
