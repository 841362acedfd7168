// SPDX-License-Identifier: Apache-2.0
// Four lanes of Arm's Advanced SIMD, present on every AArch64 machine.
#pragma once
#include <arm_neon.h>

#include <cstdint>

#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct Neon {
  using F = float32x4_t;
  static constexpr int lanes = 4;
  static constexpr int panel_vectors = 3;  // 12 x 8 uses 24 accumulators of 32 registers
  static constexpr int tile_columns = 8;

  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F x) { vst1q_f32(p, x); }
  static F fill(float x) { return vdupq_n_f32(x); }
  // FMLA overwrites its addend. Copying a constant there takes a vector pipe that the products need; loading
  // it does not, and the compiler would not choose so by itself.
  static F addend(const float* filled) {
    F result;
    asm volatile("ldr %q0, %1" : "=w"(result) : "m"(*reinterpret_cast<const float(*)[4]>(filled)));
    return result;
  }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F max(F a, F b) { return vmaxq_f32(a, b); }
  static F abs(F a) { return vabsq_f32(a); }
  static F less(F a, F b, F then, F otherwise) { return vbslq_f32(vcltq_f32(a, b), then, otherwise); }
  static F copy_sign(F magnitude, F sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude); }
  static F power_of_two(F z) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(z), 23)); }
  static void transpose(const float* const from[4], float* to, std::int64_t width) {
    const float32x4x2_t even = vzipq_f32(load(from[0]), load(from[2])),
                        odd = vzipq_f32(load(from[1]), load(from[3]));  // fault: transpose-wrong-lane
    for (int half = 0; half < 2; ++half) {
      const float32x4x2_t both = vzipq_f32(even.val[half], odd.val[half]);
      store(to + 2 * half * width, both.val[0]);
      store(to + (2 * half + 1) * width, both.val[1]);
    }
  }
  using Four = float32x4_t;
  static Four load_four(const float* p) { return vld1q_f32(p); }
  template <int lane>
  static F fma_lane(F x, Four four, F a) {
    return vfmaq_laneq_f32(a, x, four, lane);
  }
  // Reads a cache line early, for its own sake: software prefetches are slower.
  static void touch(const void* p) { asm volatile("ldr wzr, [%0]" : : "r"(p)); }
  static F load_bf16(const std::uint16_t* p) {  // zipping takes either pipe of Neoverse-N1, shifting one
    const uint16x8_t halves = vcombine_u16(vld1_u16(p), vcreate_u16(0));
    return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), halves));
  }
  static F load_i8(const std::int8_t* p) {
    std::uint32_t four;
    __builtin_memcpy(&four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
  }
  static F load_f16(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  // Two vectors side by side with one load.
  static void load_two_bf16(const std::uint16_t* p, F* x) {
    const uint16x8_t halves = vld1q_u16(p), zero = vdupq_n_u16(0);
    x[0] = vreinterpretq_f32_u16(vzip1q_u16(zero, halves)),
    x[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, halves));
  }
  static void load_two_f16(const std::uint16_t* p, F* x) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
    x[0] = vcvt_f32_f16(vget_low_f16(halves)), x[1] = vcvt_high_f32_f16(halves);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
