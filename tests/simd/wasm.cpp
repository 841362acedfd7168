// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET wasm
#include "cpu/isa/wasm.hpp"

#include "simd/make_operations.hpp"

namespace heed::simd {

extern const Operations wasm_operations;
constinit const Operations wasm_operations = make_operations<cpu::wasm::Wasm>("wasm");

}  // namespace heed::simd
