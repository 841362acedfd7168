// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd/scalar.hpp"

#include "cpu/target/table.hpp"

namespace heed::cpu {

extern const Target scalar_target;
constinit const Target scalar_target = make_target<Scalar>("scalar", "any machine", [] { return true; });

}  // namespace heed::cpu
