// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET scalar
#include "cpu/isa/scalar.hpp"

#include "simd/make_operations.hpp"

namespace heed::simd {

extern const Operations scalar_operations;
constinit const Operations scalar_operations = make_operations<cpu::scalar::Scalar>("scalar");

}  // namespace heed::simd
