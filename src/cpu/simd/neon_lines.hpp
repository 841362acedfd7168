// SPDX-License-Identifier: Apache-2.0
// Sixteen elements of a cache's line on AArch64: whole registers are loaded and widened by halves.
#pragma once
#include "cpu/algorithm/pack.hpp"
#include "cpu/simd/neon.hpp"

namespace heed::cpu {

template <>
inline void load_sixteen<Neon, Type::bf16>(const void* p, float32x4_t* x) {
  const auto* from = static_cast<const std::uint16_t*>(p);
  for (int n = 0; n < 2; ++n) {
    const uint16x8_t eight = vld1q_u16(from + 8 * n);
    x[2 * n] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(eight), 16));
    x[2 * n + 1] = vreinterpretq_f32_u32(vshll_high_n_u16(eight, 16));
  }
}

template <>
inline void load_sixteen<Neon, Type::f16>(const void* p, float32x4_t* x) {
  const auto* from = static_cast<const std::uint16_t*>(p);
  for (int n = 0; n < 2; ++n) {
    const float16x8_t eight = vreinterpretq_f16_u16(vld1q_u16(from + 8 * n));
    x[2 * n] = vcvt_f32_f16(vget_low_f16(eight));
    x[2 * n + 1] = vcvt_high_f32_f16(eight);
  }
}

template <>
inline void load_sixteen<Neon, Type::i8>(const void* p, float32x4_t* x) {
  const int8x16_t all = vld1q_s8(static_cast<const std::int8_t*>(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_high_s8(all);
  x[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
  x[1] = vcvtq_f32_s32(vmovl_high_s16(low));
  x[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
  x[3] = vcvtq_f32_s32(vmovl_high_s16(high));
}

}  // namespace heed::cpu
