// SPDX-License-Identifier: Apache-2.0
// Verbs of a warp that need nothing newer than sm_80: asynchronous copies of 16 bytes under a predicate,
// words of shared memory, votes, and int8 as 16-bit floats.
#pragma once
#include <cstdint>

#include "cuda/tile/mma.cuh"

namespace heed::cuda {

// 16 bytes into shared memory past the first-level cache, or zeros: then `from` is not read. A predicate in
// place of a number of bytes: the compiler branches over sizes, which costs 70 instructions a copy.
HEED_DEVICE void prefetch16(SharedAddress to, const void* from, bool is_valid) {
  asm volatile(
      "{\n.reg .pred ignored;\n"
      "setp.eq.u32 ignored, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignored;\n}\n" ::"r"(to),
      "l"(from), "r"(static_cast<std::uint32_t>(is_valid))
      : "memory");
}
// 16 bytes, or nothing happens.
HEED_DEVICE void prefetch16_if(bool is_wanted, SharedAddress to, const void* from) {
  asm volatile(
      "{\n.reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}\n" ::"r"(to),
      "l"(from), "r"(static_cast<std::uint32_t>(is_wanted))
      : "memory");
}

HEED_DEVICE void store_shared4(SharedAddress to, std::uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
HEED_DEVICE std::uint32_t load_shared4(SharedAddress from) {
  std::uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
HEED_DEVICE float2 load_shared_floats(SharedAddress from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}
HEED_DEVICE float load_shared_float(SharedAddress from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}

HEED_DEVICE int lane_index() { return thread_index() % 32; }
// The same in all threads of a warp, so that the compiler knows it.
HEED_DEVICE int warp_index() { return __shfl_sync(0xffffffffu, thread_index() / 32, 0); }
HEED_DEVICE bool all_of_warp(bool each) { return __all_sync(0xffffffffu, each) != 0; }
HEED_DEVICE std::uint32_t shuffle_xor(std::uint32_t x, int bits) {
  return __shfl_xor_sync(0xffffffffu, x, bits);
}

HEED_DEVICE int max_of_warp(int x) { return __reduce_max_sync(0xffffffffu, x); }
HEED_DEVICE int min_of_warp(int x) { return __reduce_min_sync(0xffffffffu, x); }

// Four signed bytes as four 16-bit floats, exactly: a bf16 has 8 bits, an f16 more.
template <Type type>
HEED_DEVICE void widen_bytes(std::uint32_t (&to)[2], std::uint32_t bytes) {
  if constexpr (type == Type::bf16) {
    // 128 + the low seven bits, less 128, or 256 where the sign is set.
    const std::uint32_t halves[2] = {__byte_perm(bytes, 0, 0x4140), __byte_perm(bytes, 0, 0x4342)};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const std::uint32_t size = (halves[n] & 0x007f007fu) | 0x43004300u,
                          sign = (halves[n] & 0x00800080u) | 0x43004300u;
      __nv_bfloat162 a, b;
      memcpy(&a, &size, 4), memcpy(&b, &sign, 4);
      a = __hsub2(a, b);
      memcpy(&to[n], &a, 4);
    }
  } else {
    // 1024 + (x + 128), less 1152.
    bytes ^= 0x80808080u;
    const std::uint32_t halves[2] = {__byte_perm(bytes, 0x64646464u, 0x4140),
                                     __byte_perm(bytes, 0x64646464u, 0x4342)};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const std::uint32_t offset = 0x64806480u;
      __half2 a, b;
      memcpy(&a, &halves[n], 4), memcpy(&b, &offset, 4);
      a = __hsub2(a, b);
      memcpy(&to[n], &a, 4);
    }
  }
}

// Two 16-bit numbers, those that are not finite replaced by 0.
template <Type type>
HEED_DEVICE std::uint32_t finite_or_zero(std::uint32_t both) {
  constexpr std::uint32_t exponent = type == Type::bf16 ? 0x7f80u : 0x7c00u;
  if ((both & exponent) == exponent) both &= 0xffff0000u;
  if ((both >> 16 & exponent) == exponent) both &= 0x0000ffffu;
  return both;
}

}  // namespace heed::cuda
