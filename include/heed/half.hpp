// SPDX-License-Identifier: Apache-2.0
// The two 16-bit float formats, as storage. Conversion to float is exact; conversion from float rounds to
// nearest even, overflows to infinity and keeps NaN a NaN.
#pragma once
#include <cstdint>

#include "heed/version.hpp"

namespace HEED_NAMESPACE {

struct bf16 {
  std::uint16_t bits = 0;
};
struct f16 {
  std::uint16_t bits = 0;
};

constexpr float to_float(float x) { return x; }

constexpr float to_float(bf16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}

constexpr float to_float(f16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);  // Inf, NaN
  if (magnitude >= 0x0400u) return __builtin_bit_cast(float, sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, subnormal));
}

// Inlined always: kernels of every instruction set round by them, and the linker must not share what one of
// them compiled.
template <class T>
constexpr T from_float(float x);

template <>
constexpr float from_float<float>(float x) {
  return x;
}

template <>
[[gnu::always_inline]] constexpr bf16 from_float<bf16>(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(u >> 16 | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}

// Every case is computed and one is chosen: compilers make vectors of it, which takes half the time
// (Neoverse-N1, November 2026).
template <>
[[gnu::always_inline]] constexpr f16 from_float<f16>(float x) {
  constexpr std::uint32_t min_normal = 0x38800000u;   // 2^-14
  constexpr std::uint32_t to_infinity = 0x477ff000u;  // rounds to 65536
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x), magnitude = u & 0x7fffffffu;
  const std::uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  // Adding 0.5 leaves the subnormal, rounded, in the low bits.
  const float small = __builtin_bit_cast(float, magnitude < min_normal ? magnitude : min_normal) + 0.5f;
  const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, small) - 0x3f000000u;
  const std::uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  std::uint32_t rounded = magnitude < min_normal ? subnormal : normal;
  rounded = magnitude >= to_infinity ? 0x7c00u : rounded;
  rounded = magnitude > 0x7f800000u ? nan : rounded;
  return {static_cast<std::uint16_t>((u >> 16 & 0x8000u) | rounded)};
}

}  // namespace HEED_NAMESPACE
