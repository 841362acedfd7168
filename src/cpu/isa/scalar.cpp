// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET scalar
#include "cpu/isa/scalar.hpp"

#include "cpu/isa/table.hpp"

namespace heed::cpu {

extern const Target scalar_target;
constinit const Target scalar_target =
    scalar::make_target<scalar::Scalar>("scalar", "any machine", [] { return true; });

}  // namespace heed::cpu
