// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET wasm
#include "cpu/isa/wasm.hpp"

#include "cpu/isa/table.hpp"

// fmaf() of a WebAssembly build, in place of its C library's, which rounds twice where the result is
// subnormal. Wasm::fma does the same to four lanes and says why it is right.
extern "C" float fmaf(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b), added = static_cast<double>(c);
  const double sum = product + added;
  const auto bits = __builtin_bit_cast(std::int64_t, sum);
  if ((bits & 0xfffffff) != 0) return static_cast<float>(sum);
  const double part = sum - product, error = (product - (sum - part)) + (added - part);
  if (!(error < 0 || error > 0)) return static_cast<float>(sum);
  return static_cast<float>(__builtin_bit_cast(double, (error < 0) == (sum < 0) ? bits + 1 : bits - 1));
}

namespace heed::cpu {

extern const Target wasm_target;
constinit const Target wasm_target =
    wasm::make_target<wasm::Wasm>("wasm", "WebAssembly with SIMD128", [] { return true; });

}  // namespace heed::cpu
