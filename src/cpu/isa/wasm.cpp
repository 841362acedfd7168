// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET wasm
#include "cpu/isa/wasm.hpp"

#include "cpu/isa/table.hpp"

namespace heed::cpu {

extern const Target wasm_target;
constinit const Target wasm_target =
    wasm::make_target<wasm::Wasm>("wasm", "WebAssembly with SIMD128", [] { return true; });

}  // namespace heed::cpu
