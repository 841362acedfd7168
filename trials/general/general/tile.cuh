// SPDX-License-Identifier: Apache-2.0
// The verbs of a warp on tiles of 16-bit numbers, nothing newer than sm_80: copies that run ahead, 8 x 8
// matrices out of shared memory, and products of 16 rows by 8 columns, 16 deep, with sums in f32.
//
// Of a product's sums lane l has rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/block.cuh"

namespace heed::cuda::general {

using SharedAddress = std::uint32_t;

HEED_DEVICE SharedAddress shared_address(const void* p) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(p));
}

// Four 8 x 8 matrices, one row of 16 bytes for each lane; or their transposes.
HEED_DEVICE void load_matrices(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}
HEED_DEVICE void load_transposed(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

template <Type type>
HEED_DEVICE void add_product(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (type == Type::bf16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes past the first-level cache, or zeros: then `from` is not read.
HEED_DEVICE void prefetch16(SharedAddress to, const void* from, bool is_there) {
  asm volatile(
      "{\n.reg .pred ignored;\n"
      "setp.eq.u32 ignored, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignored;\n}\n" ::"r"(to),
      "l"(from), "r"(static_cast<std::uint32_t>(is_there))
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

HEED_DEVICE void store16(SharedAddress to, const std::uint32_t (&x)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]),
               "r"(x[3])
               : "memory");
}
HEED_DEVICE void load16(std::uint32_t (&x)[4], SharedAddress from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}
HEED_DEVICE void store4(SharedAddress to, std::uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
HEED_DEVICE float load_float(SharedAddress from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}

HEED_DEVICE int lane_index() { return thread_index() % 32; }
// The same in all threads of a warp, so that the compiler knows it.
HEED_DEVICE int warp_index() { return __shfl_sync(0xffffffffu, thread_index() / 32, 0); }
HEED_DEVICE bool any_of_warp(bool one) { return __any_sync(0xffffffffu, one) != 0; }
HEED_DEVICE bool all_of_warp(bool each) { return __all_sync(0xffffffffu, each) != 0; }
HEED_DEVICE std::uint32_t word_across(std::uint32_t x, int bits) {
  return __shfl_xor_sync(0xffffffffu, x, bits);
}

HEED_DEVICE int min(int a, int b) { return a < b ? a : b; }
HEED_DEVICE int max(int a, int b) { return a > b ? a : b; }

// Two numbers side by side, as operands have them.
template <Type type>
HEED_DEVICE std::uint32_t pack(float low, float high) {
  std::uint32_t both;
  if constexpr (type == Type::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// Four signed bytes as four 16-bit floats, exactly: 8 bits are a bf16's, and fewer than an f16's.
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

// An f16 below 2^-14 has fewer bits, and none is above 2^16: weights, which are at most 2^8, are kept as
// 2^lift times as much, and so are their sums.
template <Type type>
constexpr float lift = type == Type::f16 ? 7.0f : 0.0f;
template <Type type>
constexpr float lowered = type == Type::f16 ? 0x1p-7f : 1.0f;

// 2^x to within two units of the last place, 0 below 2^-126.
HEED_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace heed::cuda::general
