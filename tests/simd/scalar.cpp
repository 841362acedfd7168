// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd/scalar.hpp"

#include "simd/operations.hpp"

namespace heed::simd {

extern const Operations scalar_operations;
constinit const Operations scalar_operations = make_operations<cpu::Scalar>("scalar");

}  // namespace heed::simd
