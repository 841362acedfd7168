// SPDX-License-Identifier: Apache-2.0
// The vector of one lane: runs anywhere, and says what every operation means.
#pragma once
#include <cstdint>

#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct Scalar {
  using F = float;
  static constexpr int lanes = 1;
  static constexpr int panel_vectors = 4;  // rows of a panel, in vectors
  static constexpr int tile_columns = 4;   // keys, or value dimensions, of a micro-tile

  static F load(const float* p) { return *p; }
  static void store(float* p, F x) { *p = x; }
  static F fill(float x) { return x; }
  // A constant, given four times over, where it is about to be overwritten by a sum.
  static F addend(const float* filled) { return *filled; }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }  // a * b + c, rounded once
  static F max(F a, F b) { return a > b ? a : b; }                 // b when either is NaN
  static F abs(F a) { return __builtin_fabsf(a); }
  static F less(F a, F b, F then, F otherwise) { return a < b ? then : otherwise; }
  static F copy_sign(F magnitude, F sign) { return __builtin_copysignf(magnitude, sign); }
  // 2^n, for z = n + exponent_magic (arithmetic.hpp): the low bits of z hold n + 127.
  static F power_of_two(F z) { return from_bits(bits(z) << 23); }
  // A 4 x 4 corner, transposed: to[d * width + r] = from[r][d].
  static void transpose(const float* const from[4], float* to, std::int64_t width) {
    for (int d = 0; d < 4; ++d)
      for (int r = 0; r < 4; ++r) to[d * width + r] = from[r][d];
  }
  // Four neighbouring floats, each of which can multiply a whole vector: a + x * four[lane].
  using Four = const float*;
  static Four load_four(const float* p) { return p; }
  template <int lane>
  static F fma_lane(F x, Four four, F a) {
    return fma(x, four[lane], a);
  }
  static void prefetch(const void*) {}
  static F load_bf16(const std::uint16_t* p) { return from_bits(std::uint32_t{*p} << 16); }
  static F load_i8(const std::int8_t* p) { return static_cast<float>(*p); }
  static F load_f16(const std::uint16_t* p) {
    const std::uint32_t sign = std::uint32_t{*p & 0x8000u} << 16, magnitude = *p & 0x7fffu;
    if (magnitude >= 0x7c00u) return from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // Shifted into place the exponent is 112 too small. Subnormals are counted in 2^-24: shifted, they would
    // be subnormal floats, which the caller's mode may flush.
    if (magnitude < 0x0400u) return from_bits(sign | bits(static_cast<float>(magnitude) * 0x1p-24f));
    return from_bits(sign | ((magnitude << 13) + (112u << 23)));
  }

 private:
  static std::uint32_t bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
  static float from_bits(std::uint32_t x) { return __builtin_bit_cast(float, x); }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
