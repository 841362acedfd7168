// SPDX-License-Identifier: Apache-2.0
// fmaf() of a WebAssembly build, in place of its C library's, which rounds twice where the result is
// subnormal. isa/wasm.hpp does the same to four lanes and says why it is right.
#include <bit>
#include <cstdint>

extern "C" float fmaf(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b), added = static_cast<double>(c);
  const double sum = product + added;
  const auto bits = std::bit_cast<std::int64_t>(sum);
  if ((bits & 0xfffffff) != 0) return static_cast<float>(sum);
  const double part = sum - product, error = (product - (sum - part)) + (added - part);
  if (!(error < 0 || error > 0)) return static_cast<float>(sum);
  return static_cast<float>(std::bit_cast<double>((error < 0) == (sum < 0) ? bits + 1 : bits - 1));
}
