// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup's matrix instructions: 64 rows times 32 to 256 columns, 16 deep, summed in
// f32. Thread t holds rows 16 (t / 32) + t % 32 / 4 and 8 further down; of every eight columns the two from 2
// (t % 4) on: sums [4 n], [4 n + 1] of the first row and [4 n + 2], [4 n + 3] of the second for columns 8 n.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

// An operand in shared memory: rows of 128 bytes in the copy engine's 128-byte swizzle, or of 32 bytes in
// that of 32; eight rows are 1024 or 256 bytes. `next` is the distance to the next 64 or 16 columns, where
// the operand is transposed. This is the half of the descriptor that differs; additions stay within it.
using Operand = std::uint32_t;
HEED_DEVICE Operand operand(SharedAddress tile, int next = 16) {
  return (tile & 0x3FFFFu) >> 4 | static_cast<std::uint32_t>(next >> 4) << 16;
}
HEED_DEVICE Operand advanced(Operand x, int bytes) { return x + static_cast<std::uint32_t>(bytes >> 4); }
template <int row_bytes = 128>
HEED_DEVICE std::uint64_t descriptor(Operand x) {
  static_assert(row_bytes == 128 || row_bytes == 32);
  constexpr std::uint64_t eight_rows = 8 * row_bytes >> 4, swizzle = row_bytes == 128 ? 1u << 30 : 3u << 30;
  return (eight_rows | swizzle) << 32 | x;
}

HEED_DEVICE void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
HEED_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but the last n groups are done.
template <int n>
HEED_DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
// Keeps the compiler from moving other uses of registers across a product in flight that owns them.
template <int n>
HEED_DEVICE void pin(float (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int n>
HEED_DEVICE void pin(std::uint32_t (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// The first n of a thread's sums: those of fewer columns.
template <int n>
using Sums = float[n];
template <int n, int all>
HEED_DEVICE Sums<n>& first_sums(Sums<all>& x) {
  static_assert(n <= all);
  return reinterpret_cast<Sums<n>&>(x);
}

// PTX wants every register by its number.
#define HEED_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HEED_NAMES_32 \
  HEED_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HEED_NAMES_48 \
  HEED_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HEED_NAMES_56 \
  HEED_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define HEED_NAMES_64 \
  HEED_NAMES_56       \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define HEED_NAMES_96                                                                                 \
  HEED_NAMES_64                                                                                       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
  "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HEED_NAMES_128                                                                                   \
  HEED_NAMES_96                                                                                          \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HEED_FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HEED_SUMS_8(d, i) HEED_FOUR(d, i), HEED_FOUR(d, i + 4)
#define HEED_SUMS_16(d, i) HEED_SUMS_8(d, i), HEED_SUMS_8(d, i + 8)
#define HEED_SUMS_32(d, i) HEED_SUMS_16(d, i), HEED_SUMS_16(d, i + 16)
#define HEED_SUMS_48(d, i) HEED_SUMS_32(d, i), HEED_SUMS_16(d, i + 32)
#define HEED_SUMS_56(d, i) HEED_SUMS_48(d, i), HEED_SUMS_8(d, i + 48)
#define HEED_SUMS_64(d, i) HEED_SUMS_32(d, i), HEED_SUMS_32(d, i + 32)
#define HEED_SUMS_96(d, i) HEED_SUMS_64(d, i), HEED_SUMS_32(d, i + 64)
#define HEED_SUMS_128(d, i) HEED_SUMS_64(d, i), HEED_SUMS_64(d, i + 64)

// Both operands in shared memory, or the first in registers; `adds` 0 begins a sum, `transposed` transposes
// the second, whose rows have so many bytes, `first_transposed` the first.
#define HEED_PRODUCTS(columns, sums, n0, n1, n2, n3, n4, n5, name)                                     \
  template <int transposed, int row_bytes, int first_transposed>                                       \
  HEED_DEVICE void multiply_##name(float(&d)[sums], Operand a, Operand b, int adds) {                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2                                              \
                 ", 0;\n"                                                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #name "." #name               \
                 " {" HEED_NAMES_##sums                                                                \
                 "}, "                                                                                 \
                 "%" #n0 ", %" #n1 ", p, 1, 1, %" #n4 ", %" #n3 ";\n}\n"                               \
                 : HEED_SUMS_##sums(d, 0)                                                              \
                 : "l"(descriptor(a)), "l"(descriptor<row_bytes>(b)), "r"(adds), "n"(transposed),      \
                   "n"(first_transposed));                                                             \
  }                                                                                                    \
  template <int transposed, int row_bytes>                                                             \
  HEED_DEVICE void multiply_##name(float(&d)[sums], const std::uint32_t* a, Operand b) {               \
    asm volatile(                                                                                      \
        "{\n.reg .pred p;\nmov.pred p, 1;\n"                                                           \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #name "." #name " {" HEED_NAMES_##sums \
        "}, "                                                                                          \
        "{%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", p, 1, 1, %" #n5 ";\n}\n"                  \
        : HEED_SUMS_##sums(d, 0)                                                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor<row_bytes>(b)), "n"(transposed)); \
  }
HEED_PRODUCTS(32, 16, 16, 17, 18, 19, 20, 21, bf16)
HEED_PRODUCTS(32, 16, 16, 17, 18, 19, 20, 21, f16)
HEED_PRODUCTS(64, 32, 32, 33, 34, 35, 36, 37, bf16)
HEED_PRODUCTS(64, 32, 32, 33, 34, 35, 36, 37, f16)
HEED_PRODUCTS(96, 48, 48, 49, 50, 51, 52, 53, bf16)
HEED_PRODUCTS(96, 48, 48, 49, 50, 51, 52, 53, f16)
HEED_PRODUCTS(112, 56, 56, 57, 58, 59, 60, 61, bf16)
HEED_PRODUCTS(112, 56, 56, 57, 58, 59, 60, 61, f16)
HEED_PRODUCTS(128, 64, 64, 65, 66, 67, 68, 69, bf16)
HEED_PRODUCTS(128, 64, 64, 65, 66, 67, 68, 69, f16)
HEED_PRODUCTS(192, 96, 96, 97, 98, 99, 100, 101, bf16)
HEED_PRODUCTS(192, 96, 96, 97, 98, 99, 100, 101, f16)
HEED_PRODUCTS(256, 128, 128, 129, 130, 131, 132, 133, bf16)
HEED_PRODUCTS(256, 128, 128, 129, 130, 131, 132, 133, f16)
#undef HEED_PRODUCTS

// d = [d +] a * b, operands as they lie or transposed.
template <Type type, int transposed, int row_bytes = 128, int first_transposed = 0, int sums>
HEED_DEVICE void multiply(float (&d)[sums], Operand a, Operand b, int adds) {
  if constexpr (type == Type::bf16)
    multiply_bf16<transposed, row_bytes, first_transposed>(d, a, b, adds);
  else
    multiply_f16<transposed, row_bytes, first_transposed>(d, a, b, adds);
}
template <Type type, int transposed, int row_bytes = 128, int sums>
HEED_DEVICE void multiply(float (&d)[sums], const std::uint32_t* a, Operand b) {
  if constexpr (type == Type::bf16)
    multiply_bf16<transposed, row_bytes>(d, a, b);
  else
    multiply_f16<transposed, row_bytes>(d, a, b);
}

}  // namespace heed::cuda
