// SPDX-License-Identifier: Apache-2.0
// Products of one warp's matrix instructions, 16 rows times 8 columns, 16 deep: bf16 or f16 in, sums in f32.
// Lane l holds of the sums rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/block.cuh"

namespace heed::cuda {

// Four 8 x 8 matrices, one row of 16 bytes for each lane; or their transposes.
HEED_DEVICE void load_matrices(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
HEED_DEVICE void load_matrices_transposed(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
// An 8 x 8 matrix that lies in the lanes' registers.
HEED_DEVICE std::uint32_t transposed(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

template <Type type>
HEED_DEVICE void add_product(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (type == Type::bf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes into shared memory past the first-level cache, or zeros.
HEED_DEVICE void stream16(SharedAddress to, const void* from, bool is_valid) {
  const int bytes = is_valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// What another block wrote, into shared memory that only this thread reads: 8 bytes or some times 16, or
// zeros.
template <class Numbers>
HEED_DEVICE void stream_own(Numbers* to, const float* from, bool is_valid) {
  const SharedAddress at = shared_address(to);
  constexpr int size = sizeof(Numbers);
  if constexpr (size == 8) {
    const int bytes = is_valid ? size : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
  } else {
    const int bytes = is_valid ? 16 : 0;
#pragma unroll
    for (int n = 0; n < size; n += 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at + n), "l"(from + n / 4),
                   "r"(bytes)
                   : "memory");
  }
}

HEED_DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
HEED_DEVICE void sync_warp() { __syncwarp(); }
HEED_DEVICE bool warp_any(bool one) { return __any_sync(0xffffffffu, one); }

// Two 16-bit numbers in one register, as operands have them.
template <Type type>
HEED_DEVICE std::uint32_t pack2(float low, float high) {
  std::uint32_t both;
  if constexpr (type == Type::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// An f16 below 2^-14 has fewer bits, and none is above 2^16: weights, which are at most 2^8, and their sums
// are scaled by 2^lift.
template <Type type>
constexpr float lift = type == Type::f16 ? 7.0f : 0.0f;
template <Type type>
constexpr float lowered = type == Type::f16 ? 0x1p-7f : 1.0f;

// 1 / x to within a unit of the last place.
HEED_DEVICE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 2^x to within two units of the last place, 0 below 2^-126.
HEED_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace heed::cuda
