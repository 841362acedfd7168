// SPDX-License-Identifier: Apache-2.0
// The two 16-bit float formats, as storage. Conversion to float is exact; conversion from float rounds to
// nearest even, overflows to infinity and keeps NaN a NaN.
#pragma once
#include <bit>
#include <cstdint>

namespace heed::inline v0_2 {

struct bf16 {
  std::uint16_t bits = 0;
};
struct f16 {
  std::uint16_t bits = 0;
};

constexpr float to_float(float x) { return x; }

constexpr float to_float(bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

constexpr float to_float(f16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);  // Inf, NaN
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

template <class T>
constexpr T from_float(float x);

template <>
constexpr float from_float<float>(float x) {
  return x;
}

template <>
constexpr bf16 from_float<bf16>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(u >> 16 | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}

template <>
constexpr f16 from_float<f16>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = u >> 16 & 0x8000u;
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return {static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu))};
  if (magnitude >= 0x477ff000u)
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or beyond
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the subnormal, rounded, in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return {static_cast<std::uint16_t>(sign | (rounded - (112u << 23)) >> 13)};
}

}  // namespace heed::inline v0_2
